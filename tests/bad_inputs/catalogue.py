"""Bad inputs, one a line: what is wrong with an otherwise good job, and what has to be said about it."""

import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = b"text,category\n" + b"".join(b"text %d,%s\n" % (number, b"ab"[number % 2 :][:1]) for number in range(8))
SILENT = "SILENT"
"""Stands for the address of a hub that takes connections and never answers."""


@dataclass(frozen=True)
class Case:
    """`files` are put beside, or in the place of, a good train.csv and validation.csv; `job` is the configuration file.

    Exactly one problem is told, and it holds all `words`.
    """

    name: str
    words: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    job: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def setting(name: str, override: str, *words: str, **more: Any) -> Case:
    return Case(name, words, tuple(override.split(" ")), **more)


def train(name: str, content: bytes, *words: str, file: str = "train.csv", overrides: tuple[str, ...] = ()) -> Case:
    """Another training file, which is asked for by its name."""
    return Case(name, (f"data.train: {file}", *words), (f"data.train={file}", *overrides), {file: content})


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def labelled(*labels: object) -> bytes:
    return lines(*({"text": f"text {number}", "category": label} for number, label in enumerate(labels)))


def parquet(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def arrow(**columns: Any) -> bytes:
    target = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


CONFIGURATION = [
    Case("unknown key", ("training.epoch: no such setting (job.yaml:1)", "did you mean training.epochs?"),
         job="training: {epoch: 3}"),
    Case("no YAML", ("job.yaml:1: not valid YAML",), job="training: [1"),
    Case("key twice", ("job.yaml:3: run.seed is given twice, first on line 2",), job="run:\n  seed: 1\n  seed: 2\n"),
    Case("no mapping", ("job.yaml: holds ['training']", "expected a mapping of sections"), job="- training\n"),
    Case("placeholder left in", ("model.revision: found '<tag>'", "placeholder left in: <tag>"),
         job="model: {revision: <tag>}"),
    Case("code in a tag", ("the tag !!python/object/apply:os.system is not supported",),
         job="model: {revision: !!python/object/apply:os.system [exit]}"),
    setting("number as word", "training.epochs=three", "training.epochs: found 'three'", "an integer of at least 1"),
    setting("no epochs", "training.epochs=0", "training.epochs: found 0", "at least 1"),
    setting("rate above limit", "training.learning_rate=100", "training.learning_rate: found 100", "at most 10"),
    setting("infinite rate", "training.learning_rate=.inf", "training.learning_rate: found inf"),
    setting("unknown scheduler", "training.lr_scheduler=step", "found 'step'", "'linear', 'cosine' or 'constant'"),
    setting("unknown precision", "training.mixed_precision=fp8", "found 'fp8'", "'no', 'bf16' or 'fp16'"),
    setting("fp16 on CPUs", "training.mixed_precision=fp16 scaling.use_gpu=false", "fp16 needs a GPU", "no or bf16"),
    setting("unknown task", "model.task=translation", "model.task: found 'translation'", "'regression'"),
    setting("unknown strategy", "strategy.kind=pipeline", "strategy.kind: found 'pipeline'"),
    setting("unknown engine", "data.engine=dask", ["data.engine: found 'dask'", " expected 'ray' or 'torch'"][0]),
    setting("no key and value", "epochs", "found 'epochs', expected key=value"),
    setting("bad run name", "run.name=../up", "run.name: found '../up'", "the first a letter or digit"),
    setting("batch below workers", "training.global_batch_size=1", "training.global_batch_size: 1",
            "scaling.workers 2"),
    setting("best without validation", "metrics.best=f1 data.validation=null", "metrics.best: needs data.validation"),
    setting("patience without validation", "training.early_stopping_patience=2 data.validation=null",
            "training.early_stopping_patience: needs data.validation"),
    setting("class weights of a number", "training.class_weights=balanced model.task=regression",
            "training.class_weights: only for text-classification"),
    setting("weight of no class", "training.class_weights.c=2", "training.class_weights: no class 'c'", "['a', 'b']"),
    setting("negative weight", "training.class_weights.a=-1", "every class weight must be above 0"),
    setting("unknown metric", "metrics.names=[acuracy]", "acuracy", "accuracy"),
    setting("metric of another task", "metrics.names=[pearson]", "pearson", "text-classification"),
    setting("resource in lower case", "scaling.resources_per_worker.gpu=1", "'gpu' is not a Ray resource; write 'GPU'"),
    setting("more workers than CPUs", "scaling.workers=8 scaling.resources_per_worker.CPU=500",
            "scaling.workers: 8 workers of 500 CPU each", "can hold 0"),
    setting("GPUs that are not there", "scaling.use_gpu=true scaling.resources_per_worker.GPU=64",
            "2 workers of 1 CPU, 64 GPU each"),
    Case("environment", ("run.seed: found 'x' (environment PIPELINE__RUN__SEED)",),
         environ={"PIPELINE__RUN__SEED": "x"}),
    Case("unknown environment", ("run.sede: no such setting", "PIPELINE__RUN__SEDE", "run.seed"),
         environ={"PIPELINE__RUN__SEDE": "1"}),
    setting("setting of another strategy", "strategy.zero_stage=2", "strategy.zero_stage: found 2",
            "of kind deepspeed, not of ddp"),
    setting("offload of a stage that shards nothing", "strategy.kind=deepspeed strategy.zero_stage=0 "
            "strategy.offload_optimizer=cpu", "strategy.offload_optimizer: cpu needs zero_stage 1, 2 or 3, found 0"),
    setting("FSDP1 on CPUs", "strategy.kind=fsdp strategy.version=1 strategy.state_dict=full scaling.use_gpu=false",
            "strategy.version: 1 needs GPUs, and this job runs on CPUs; expected 2"),
    setting("no file of accelerate", "strategy.accelerate_config=nix.yaml", "nix.yaml"),
    setting("file of accelerate for another machine", "strategy.accelerate_config=a.yaml",
            "strategy.accelerate_config: ", "distributed_type is XLA; expected FSDP, DEEPSPEED or one of",
            files={"a.yaml": b"distributed_type: XLA\n"}),
    setting("no function to train", "run.train_func=training", "run.train_func: found 'training'",
            "expected package.module:function"),
    setting("function of no module", "run.train_func=no_such.training:train", "run.train_func: found",
            "No module named 'no_such'"),
    Case("address of a job server", ("RAY_ADDRESS: found http://head:8265", "HOST:6379"),
         environ={"RAY_ADDRESS": "http://head:8265"}),
    setting("number beyond all counting", "training.epochs=9999999999", "found 9999999999", "at most 2,147,483,647"),
    setting("time beyond all timers", "run.collective_timeout_s=1000000000000", "from 1 to 10000000"),
    setting("GPUs asked for and not", "scaling.use_gpu=true scaling.resources_per_worker.GPU=0",
            "scaling.resources_per_worker.GPU: 0 with scaling.use_gpu true"),
    setting("label as text", "data.columns.label=text", "data.columns.text and data.columns.label: found 'text'"),
    setting("text twice", "data.columns.text_pair=text", "data.columns.text and data.columns.text_pair: found 'text'"),
    setting("function of a module that ends the program", "run.train_func=ends:train", "run.train_func: found 'ends:",
            "SystemExit: 3", files={"ends.py": b"import sys\nsys.exit(3)\n"}),
    setting("class that is not in the model", "strategy.kind=fsdp strategy.wrap=[Nix]", "strategy.wrap: the model has",
            "'Nix'", "BertLayer"),
]  # fmt: skip

FILES = [
    setting("no such file", "data.train=trian.csv", "data.train: trian.csv: no such file or folder", "train.csv"),
    setting("glob without a match", "data.train=part-*.parquet", "data.train: part-*.parquet: no file matches"),
    setting("empty list", "data.train=[]", "data.train: no path is given"),
    setting("folder without data", "data.train=docs", "data.train: docs: no data files in this folder, found README.md",
            files={"docs/README.md": b"what it is"}),
    setting("unknown suffix", "data.train=rows.xlsx", "rows.xlsx: unknown suffix; give data.format", ".parquet",
            files={"rows.xlsx": b"PK"}),
    setting("other scheme", "data.train=gs://bucket/a.csv", "the scheme 'gs' is not supported", "s3://bucket/key"),
    setting("validation is missing", "data.validation=nix.csv", "data.validation: nix.csv: no such file or folder"),
    Case("zero bytes", ("data.train: no rows in train.csv; at least one is needed",), files={"train.csv": b""}),
    Case("header only", ("data.train: no rows in train.csv; at least one is needed",),
         files={"train.csv": b"text,category\n"}),
    Case("empty validation", ("data.validation: no rows in validation.csv",),
         files={"validation.csv": b"text,category\n"}),
    setting("several empty files", "data.train=empty/*", "data.train: no rows in 2 files",
            files={"empty/a.csv": b"", "empty/b.jsonl": b""}),
    setting("fewer rows than workers", "scaling.workers=3", "data.train: 2 rows for scaling.workers 3",
            files={"train.csv": b"text,category\nx,a\ny,b\n"}),
    train("broken gzip", gzip.compress(GOOD)[:-9], "cannot be read as csv", file="train.csv.gz"),
    train("no gzip", GOOD, "cannot be read as csv", file="train.csv.gz"),
    train("compressed Parquet", b"", "unknown suffix", file="train.parquet.gz"),
    train("damaged Parquet", parquet(text=["a"], category=["b"])[:-9], "cannot be read as parquet", file="t.parquet"),
    train("Parquet of zero bytes", b"", "cannot be read as parquet", file="t.parquet"),
    setting("Parquet without rows", "data.train=t.parquet", "data.train: no rows in t.parquet; at least one is needed",
            files={"t.parquet": parquet(text=pa.array([], pa.string()), category=pa.array([], pa.string()))}),
    train("damaged Arrow", arrow(text=["a"], category=["b"])[:50], "cannot be read as arrow", file="t.arrow"),
    train("CSV said to be Parquet", GOOD, "cannot be read as parquet",
          overrides=("data.format=parquet", "data.validation=null")),
    setting("split that is not saved", "data.train=saved", "saved: holds the splits 'test', and not 'train'",
            files={"saved/dataset_dict.json": b'{"splits": ["test"]}', "saved/test/data.arrow": b""}),
    setting("shard that is missing", "data.train=saved", "data-00000-of-00001.arrow is missing, which state.json names",
            files={"saved/dataset_info.json": b"{}",
                   "saved/state.json": b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'}),
    setting("name of the hub misspelt", "data.train=hub:banking77", "hub:banking77: expected hub:OWNER/NAME"),
    setting("hub that is silent", "data.train=hub:owner/name", "data.train: hub:owner/name: the hub http://127.0.0.1:",
            "cannot be asked for owner/name", environ={"HF_ENDPOINT": SILENT}),
    setting("name of the hub as a path", "data.train=owner/name", "no such file", "write hub:owner/name"),
    setting("NUL in a path", 'data.train="a\\0b"', "data.train: 'a\\x00b': holds a character that no path can have"),
    setting("half a character in a path", 'data.train="\\udcff"', "holds a character that no path can have"),
    setting("home of nobody", "data.train=~nobody-here/a.csv", "data.train: ~nobody-here/a.csv: no such file"),
]  # fmt: skip

ROWS = [
    train("other column", b"text,intent\nx,a\ny,b\n", "no column 'category'; the file has 'text', 'intent'"),
    setting("no second text", "data.columns.text_pair=answer data.validation=null", "no column 'answer'",
            "'text', 'category'"),
    train("column twice", b"text,text,category\nx,y,a\n", "2 columns are named 'text'; one is needed"),
    train("Latin-1", "text,category\nschön,a\n".encode("latin-1"), "byte 17 (0xF6, line 2) is not utf-8",
          "data.encoding"),
    train("UTF-16", "text,category\nx,a\n".encode("utf-16"), "byte 0 (0xFF, line 1) is not utf-8"),
    setting("unknown encoding", "data.encoding=klingon data.validation=null", "'klingon' is no known text encoding"),
    setting("delimiter of a line end", 'data.delimiter="\\n" data.validation=null', "data.delimiter: '\\n' cannot"),
    train("row too short", b"text,category\nx,a\ny\n", "row 2 (line 3) has 1 cells, the header has 2"),
    train("row too long", b"text,category\nx, y,a\n", "row 1 (line 2) has 3 cells, the header has 2", "needs quotes"),
    train("quote without an end", b'text,category\nx,a\n"y,b\nz,a\n', "row 2 (line 3) is malformed"),
    train("no label", b"text,category\nx,a\ny,\nz,b\n", "row 2: label is empty; each row needs a label"),
    setting("one class", "data.validation=null", "data.train: only the class 'a' in column 'category'", "needs 2",
            files={"train.csv": b"text,category\nx,a\ny,a\n"}),
    Case("class of validation only", ("validation.csv row 2: label 'c' is out of range: not among the 2 classes",),
         files={"validation.csv": b"text,category\nx,a\ny,c\n"}),
    train("types in one file", labelled("a", "b", 1), "row 3: label 1 is a number", "row 1 has the string 'a'",
          file="t.jsonl"),
    setting("types in two files", "data.train=t/* data.validation=null", "t/b.jsonl row 1: label '0' is a string",
            "t/a.jsonl row 1 has the number 0", files={"t/a.jsonl": labelled(0, 1), "t/b.jsonl": labelled("0", "1")}),
    setting("null beside text", "data.train=t/*", "t/b.parquet row 1: label column 'category' is null",
            files={"t/a.parquet": parquet(text=["x", "y"], category=["a", "b"]),
                   "t/b.parquet": parquet(text=["x"], category=pa.nulls(1))}),
    train("null label", labelled("a", "b", None), "row 3: label column 'category' is null", file="t.jsonl"),
    train("null text", lines({"text": None, "category": "a"}, {"text": "x", "category": "b"}),
          "row 1: text column 'text' is null", file="t.jsonl"),
    train("number as text", parquet(text=[1, 2], category=["a", "b"]), "row 1: text column 'text' has the number 1",
          file="t.parquet"),
    setting("minus one", "data.train=t.jsonl data.validation=null", "row 3: label -1 marks rows without a label",
            files={"t.jsonl": labelled(0, 1, -1)}),
    setting("fraction as class", "data.train=t.jsonl data.validation=null", "row 2: label 0.5 is no whole number",
            "model.task to regression", files={"t.jsonl": labelled(0, 0.5, 1)}),
    train("JSON, not lines of it", b'[{"text": "x", "category": "a"}]', "row 1 (line 1) is [{'text'", "one JSON object",
          file="t.json"),
    train("JSON cut off", labelled("a", "b")[:-4], "row 2 (line 2) is not JSON", file="t.jsonl"),
    train("nested label", labelled({"name": "a"}), "row 1: column 'category' has {'name': 'a'}", file="t.jsonl"),
    train("number too large", labelled(10**30), "row 1: column 'category' has 1000", "a 64-bit number", file="t.jsonl"),
    train("half a character", b'{"text": "\\ud83d", "category": "a"}\n', "row 1: column 'text' has '\\ud83d'",
          file="t.jsonl"),
    train("JSON in Latin-1", '{"text": "schön", "category": "a"}'.encode("latin-1"), "(0xF6, line 1) is not utf-8",
          file="t.jsonl"),
    train("bytes in a text column", parquet(text=pa.array([b"x", b"\xf6"]).view(pa.string()), category=["a", "b"]),
          "row 2: column 'text' holds bytes that are not UTF-8", file="t.parquet"),
    train("dates as labels", parquet(text=["x", "y"], category=pa.array([1, 2], pa.date32())), "has the date32[day]",
          file="t.parquet"),
    train("lists as labels", parquet(text=["x", "y"], category=[["a"], ["b"]]), "lists are for model.task multi-label",
          file="t.parquet"),
    train("unsigned numbers beyond 64 bits", parquet(text=["x"], category=pa.array([2**64 - 1], pa.uint64())),
          "of type uint64 does not fit int64", file="t.parquet"),
    train("word as number", b"text,category\nx,good\n", "row 1: label column 'category' has 'good'; regression needs",
          overrides=("model.task=regression", "data.validation=null", "scaling.workers=1")),
    train("comma in a number", b'text,category\nx,"1,5"\n', "has '1,5'; regression needs a number such as 1.5",
          overrides=("model.task=regression", "data.validation=null", "scaling.workers=1")),
    train("NaN as target", b"text,category\nx,nan\n", "regression needs a finite number",
          overrides=("model.task=regression", "data.validation=null", "scaling.workers=1")),
    train("one label for several", labelled(1, 2), "multi-label needs a list of class names", file="t.jsonl",
          overrides=("model.task=multi-label", "data.validation=null")),
    train("null among labels", labelled(["a"], ["b", None]), "row 2: a label in the list is null", file="t.jsonl",
          overrides=("model.task=multi-label", "data.validation=null")),
    setting("encoding with a NUL", 'data.encoding="\\0" data.validation=null', "is no known text encoding"),
    train("blank label", b"text,category\nx,a\ny, \nz,b\n", "row 2: label is empty"),
    setting("labels alike", "data.validation=null", "row 3: label 'a ' differs from 'a' in white space",
            files={"train.csv": b"text,category\nx,a\ny,b\nz,a \n"}),
    setting("labels of two Unicode forms", "data.validation=null", "differs from '\\xe9' in white space",
            files={"train.csv": "text,category\nx,\u00e9\ny,b\nz,e\u0301\n".encode()}),
    train("key twice", b'{"text": "x", "text": "y", "category": "a"}\n', "(line 1) has 2 values of 'text'",
          file="t.jsonl"),
    setting("many columns", "data.validation=null data.columns.text=c99 data.columns.label=a", "no column 'a'",
            "'c19' and 80 more", files={"train.csv": ",".join(f"c{n}" for n in range(100)).encode() + b"\n"}),
]  # fmt: skip

MODEL = [
    setting("longer than the model", "data.max_length=4096", "data.max_length: 4096 is more than", "512 tokens"),
    setting("no such package", "model.path=package:no_such_package", "no installed Python package 'no_such_package'"),
    setting("package without a model", "model.path=package:click", "package 'click' holds no folder with config.json"),
    setting("no such folder", "model.path=./model", "model.path: no such folder ./model; expected package:NAME"),
    setting("folder without a model", "model.path=docs", "model.path: docs has no config.json",
            files={"docs/README.md": b""}),
    setting("damaged configuration", "model.path=model", "model.path: model cannot be loaded",
            files={"model/config.json": b"{"}),
    setting("model of no known type", "model.path=model", "model.path: model cannot be loaded",
            files={"model/config.json": b'{"model_type": "abacus"}'}),
    setting("model without a tokenizer", "model.path=model", "model.path", "tokenizer",
            files={"model/config.json": b'{"model_type": "bert"}', "model/model.safetensors": b""}),
    setting("setting of another model", "model.config.hidden_dropout=0.1",
            "model.config.hidden_dropout: a bert model has no such setting"),
    setting("language model that is none", "model.task=causal-lm data.validation=null", "model.path: ",
            "model.task causal-lm needs a ...ForCausalLM"),
    setting("prompt without completion", "model.task=causal-lm data.columns.prompt=text",
            "data.columns.completion: not given, but data.columns.prompt is"),
    setting("prompt of a classifier", "data.columns.prompt=text data.columns.completion=category",
            "data.columns.prompt: only for model.task causal-lm"),
    setting("adapters of no layer", "model.lora.r=4 model.lora.target_modules=[attention_x]",
            "model.lora.target_modules: found", "expected names of layers"),
    setting("no name of a model", "model.path=my~model", "model.path: 'my~model' is no name of a model on the hub"),
    setting("hub that is silent", "model.path=owner/model", "model.path: the hub http://127.0.0.1:",
            "cannot be asked for owner/model", environ={"HF_ENDPOINT": SILENT}),
    setting("program as a package", "model.path=package:__main__", "no installed Python package '__main__'"),
    setting("file as a model", "model.path=train.csv", "model.path: train.csv is a file"),
    setting("more layers than weights", "model.config.num_hidden_layers=12", "there are none for bert.encoder.layer."),
    setting("other size than the weights", "model.config.vocab_size=99", "has the shape [30522, 384], not [99, 384]"),
    setting("layers of a wrong type", "model.config.num_hidden_layers=two",
            "model.config.num_hidden_layers: found 'two', which a bert model refuses", "expected int"),
    setting("no layers", "model.config.num_hidden_layers=-1", "found -1, expected an integer of at least 1"),
    setting("sizes that do not fit", "model.config.num_attention_heads=7", "model.config: no bert model can be made"),
    setting("what the labels say", "model.config.problem_type=regression", "model.config.problem_type: follows from"),
    setting("method as a setting", "model.config.to_dict=1", "model.config.to_dict: a bert model has no such setting"),
]  # fmt: skip

STORAGE = [
    setting("other scheme", "storage.path=gs://bucket/runs", "storage.path: 'gs://bucket/runs' has the scheme 'gs'"),
    setting("no bucket name", "storage.path=s3://B/runs", "bucket name 'B'", "3 to 63 letters"),
    setting("unknown query", "storage.path=s3://bucket/runs?profile=me", "query string has 'profile'",
            "endpoint_override"),
    setting("credentials in the address", "storage.path=s3://key:word@bucket/runs", "storage.path: holds credentials"),
    setting("steps up", "storage.path=s3://bucket/../runs", "has '.' or '..' in it"),
    setting("host in a file address", "storage.path=file://host/runs", "names the host 'host'; write file:///folder"),
    setting("below a file", "storage.path=train.csv/runs", "storage.path: ", "train.csv/runs: step 'list' failed"),
    setting("no server", "storage.path=s3://bucket/runs storage.endpoint_url=http://127.0.0.1:9",
            "storage.path: s3://bucket/runs: step 'list' failed", "127.0.0.1:9"),
    setting("no bundle of certificates", "storage.path=s3://bucket/runs storage.ca_bundle=nix.pem", "nix.pem"),
]  # fmt: skip

CASES = {
    f"{area}: {case.name}": case
    for area, cases in {
        "configuration": CONFIGURATION, "files": FILES, "rows": ROWS, "model": MODEL, "storage": STORAGE,
    }.items()
    for case in cases
}  # fmt: skip

# Those that the program is started with as well, of every kind.
THROUGH_THE_PROGRAM = [
    "configuration: unknown key", "configuration: no YAML", "configuration: number as word",
    "configuration: environment", "configuration: placeholder left in", "storage: credentials in the address",
    "storage: no bucket name", "files: no such file", "files: hub that is silent", "rows: Latin-1",
    "rows: types in two files", "rows: one class", "model: hub that is silent", "storage: no server",
]  # fmt: skip
