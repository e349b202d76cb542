"""The files of a Hugging Face folder. Imports torch and transformers."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast

from geocomm.codecs.safetensors_header import safetensors_header
from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.corpus.text_tokenizer import ByteTokenizer
from geocomm.train.export.export_record import RECORD, ExportRecord, FileFacts, HeldOut, TrainedBy, Verification
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.weights import Weights
from geocomm.train.models.model_factory import implied_fields

_LOAD = {
    "hf": """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)
prompt = tokenizer("A function is", return_tensors="pt", add_special_tokens=False)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=50)[0]))
```""",
    "onnx": """Load `model.onnx` with ONNX Runtime. The input `input_ids` has the shape (batch, length).""",
}
_LIBRARY = {"hf": "transformers", "onnx": "onnx"}


def model_card(record: ExportRecord) -> str:
    """What the folder holds, where it comes from, and how to use it."""
    front = f"---\nlibrary_name: {_LIBRARY[record.format]}\npipeline_tag: text-generation\n---\n"
    about = (
        f"# {record.model_type}, {record.parameters / 1e6:,.1f}M parameters\n\n"
        f"A causal language model, trained with geocomm {record.geocomm}. `export.json` has the same facts for "
        "programs, and the SHA-256 of every file.\n"
    )
    serve = "" if record.format == "onnx" else "## Serve\n\n```\ngeocomm serve FOLDER\n```\n\n"
    quality = f"{_held_out(record.held_out, record.held_out_reason)}\n{_verified(record.verify)}"
    use = f"## Load\n\n{_LOAD[record.format]}\n\n{serve}The model completes text. It was not trained to chat.\n"
    return "\n".join((front, about, "## Training\n", _training(record), "## Quality\n", quality, use))


def _training(record: ExportRecord) -> str:
    source = record.source
    rows = [("weights", record.dtype), *_run_rows(source), ("data fingerprint", record.data)]
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows if value is not None)


def _run_rows(source: TrainedBy) -> list[tuple[str, object]]:
    sites = None if source.sites is None else ", ".join(f"{name} ({ranks})" for name, ranks in source.sites.items())
    between = {"local": "local steps", "gradients": "gradients", None: None}[source.sync_mode]
    return [
        ("run", f"`{source.path}`"),
        ("optimizer steps", source.step),
        ("ranks", source.world_size),
        ("sites (ranks)", sites),
        ("between sites", between),
        ("preset of local steps", source.sync_preset),
        ("codec with error feedback", source.sync_codec),
        ("codec of other traffic", source.codec),
        ("ZeRO stage", source.zero_stage),
        ("precision", source.precision),
    ]


def _held_out(held_out: HeldOut | None, reason: str | None) -> str:
    if held_out is None:
        return f"Loss on held-out text: not known ({reason or 'nobody evaluated it'}).\n"
    losses = [
        f"{loss:.4f} {where}"
        for loss, where in ((held_out.loss, "in these files"), (held_out.run_loss, "in training"))
        if loss is not None
    ]
    return f"Loss on {held_out.sequences} held-out sequences: {', '.join(losses)}.\n"


def _verified(verify: Verification | None) -> str:
    if verify is None:
        return "Nobody has loaded these files and compared them with the weights of the training.\n"
    of = "held-out text" if verify.held_out else "random tokens"
    return (
        f"These files were loaded again and compared with the weights of the training, on "
        f"{count_text(verify.sequences, 'sequence')} "
        f"of {of}: the largest difference of a logit is {verify.max_logit_difference:g}, and the most likely token is "
        f"{'always' if verify.argmax_equal else 'not always'} the same.\n"
    )


LARGEST_FILE_BYTES = 5 * 10**9
END_OF_TEXT = "<|endoftext|>"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class HfModel:
    """What becomes a Hugging Face folder."""

    hf_config: PreTrainedConfig
    weights: Weights
    layout: OriginalLayout
    dtype: torch.dtype
    tokenizer: str
    """The tokenizer, as `data.tokenizer` names it: `byte` or a folder."""


def write_hf_files(folder: Path, model: HfModel, largest_file_bytes: int = LARGEST_FILE_BYTES) -> dict[str, FileFacts]:
    """Write configuration, tokenizer and weights into `folder`; the facts of the weights' files.

    Holds a few weights at a time. Raises BadInput for weights or a tokenizer that do not fit; OSError.
    """
    model.layout.require(model.weights)
    _write_config(folder, model)
    write_tokenizer(model.tokenizer, folder, getattr(model.hf_config, "max_position_embeddings", None))
    return _write_weights(folder, model, largest_file_bytes)


def finish_folder(folder: Path, record: ExportRecord, known: Mapping[str, FileFacts]) -> ExportRecord:
    """Write the model card, and the record last, with the facts of all files; `known`: those that are known already."""
    (folder / "README.md").write_text(model_card(record), encoding="utf-8")
    names = sorted(path.name for path in folder.iterdir() if path.name != RECORD)
    whole = record.model_copy(
        update={"files": {name: known.get(name) or FileFacts.of(folder / name) for name in names}}
    )
    (folder / RECORD).write_text(whole.text(), encoding="utf-8")
    return whole


def _write_config(folder: Path, model: HfModel) -> None:
    config = copy.deepcopy(model.hf_config)
    config.use_cache = True  # training turned it off
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.architectures = [model.layout.architecture]
    generation = GenerationConfig.from_model_config(config)
    if generation.pad_token_id is None:  # what fills up a batch is never looked at
        ends = generation.eos_token_id
        generation.pad_token_id = ends[0] if isinstance(ends, list) else ends
    config.save_pretrained(folder)
    generation.save_pretrained(folder)
    if implied := implied_fields(config.model_type):
        path = folder / "config.json"
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) | implied
        path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_weights(folder: Path, model: HfModel, largest_file_bytes: int) -> dict[str, FileFacts]:
    planned = model.layout.planned
    split = split_torch_state_dict_into_shards(planned, max_shard_size=largest_file_bytes)
    with contextlib.ExitStack() as stack:
        files = {
            file: stack.enter_context(
                SafetensorsFile(folder / file, {name: planned[name] for name in split.filename_to_tensors[file]})
            )
            for file in split.filename_to_tensors
        }
        for name, tensor in model.layout.convert(model.weights):
            files[split.tensor_to_filename[name]].append(name, tensor)
            del tensor
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return {name: file.facts() for name, file in files.items()}


class SafetensorsFile:
    """A file that is written tensor by tensor, in the order that was told: the library `safetensors` takes all at once.

    Raises OSError.
    """

    def __init__(self, path: Path, planned: Mapping[str, torch.Tensor]) -> None:
        """planned: what is to come, in this order, without data (on the device `meta`)."""
        self._waiting = list(planned)
        self._planned = planned
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._file = path.open("wb")
        header = safetensors_header(planned)
        self._put(len(header).to_bytes(8, "little"))
        self._put(header)

    def append(self, name: str, tensor: torch.Tensor) -> None:
        """Write the next tensor, whose name, shape and dtype are those that were told."""
        expected = self._waiting.pop(0)
        plan = self._planned[expected]
        if (name, tensor.shape, tensor.dtype) != (expected, plan.shape, plan.dtype):
            raise RuntimeError(f"{name} {tensor.dtype} {[*tensor.shape]} comes where {expected} {plan} was told")
        if tensor.numel():
            data: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self._put(memoryview(data))

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def facts(self) -> FileFacts:
        """Of what was written."""
        return FileFacts(bytes=self._bytes, sha256=self._hash.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if error is None and self._waiting:
            raise RuntimeError(f"{self._waiting[0]} was told and never came")


def byte_symbols() -> list[str]:
    """The printable character by which the library `tokenizers` shows each of the 256 bytes."""
    # Printable bytes of Latin-1 stand for themselves, and the others have the characters from 256 on, in order.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    themselves = {ord(symbol): symbol for symbol in alphabet if ord(symbol) < 256}
    others = iter([symbol for symbol in alphabet if ord(symbol) >= 256])
    return [themselves.get(byte) or next(others) for byte in range(256)]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """`ByteTokenizer` for Hugging Face: equal ids for every text. Ids of bytes that are no UTF-8 decode to U+FFFD."""
    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in enumerate(byte_symbols())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if tokenizer.token_to_id(END_OF_TEXT) != ByteTokenizer.end_of_text:
        raise RuntimeError(f"{END_OF_TEXT} has id {tokenizer.token_to_id(END_OF_TEXT)}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        # In a text these letters are bytes like any others, as they were in training.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def write_tokenizer(name: str, folder: Path, longest: int | None = None) -> None:
    """Write the tokenizer that `data.tokenizer` = `name` stands for into `folder`, which exists.

    longest: tokens that the model takes. Raises BadInput where the tokenizer cannot be loaded; OSError.
    """
    if name == ByteTokenizer.identity:
        tokenizer = byte_tokenizer()
    else:
        source = Path(name).expanduser()
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"the tokenizer {source} cannot be loaded: {' '.join(str(error).split())}") from None
    if longest is not None:
        tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
