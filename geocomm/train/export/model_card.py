"""README.md of an exported model."""

from __future__ import annotations

from geocomm.core.units import count_text
from geocomm.train.export.export_record import ExportRecord, HeldOut, TrainedBy, Verification

_LOAD = {
    "hf": """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)
prompt = tokenizer("A function is", return_tensors="pt", add_special_tokens=False)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=50)[0]))
```""",
    "onnx": """Load `model.onnx` with ONNX Runtime. The input `input_ids` has the shape (batch, length).""",
    "gguf": """Load `model.gguf` with llama.cpp: `llama-cli -m FOLDER/model.gguf -p "A function is" -n 50`.""",
}
_LIBRARY = {"hf": "transformers", "onnx": "onnx", "gguf": "gguf"}


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
