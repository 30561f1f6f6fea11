//go:build tools

package tools

import (
	_ "github.com/GoogleContainerTools/skaffold/v2/cmd/skaffold"
)
