"""Wrong input of every kind that people have, each with the words that they are told."""
