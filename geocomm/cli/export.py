"""`geocomm export`: a trained model for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from geocomm.cli.command_end import fail, say
from geocomm.core.installation import install_command
from geocomm.core.units import count_text
from geocomm.train.export.export_record import Dtype

app = typer.Typer()


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run's output_dir (its newest checkpoint), a checkpoint, or a torch.distributed.checkpoint folder.",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to make, or empty.")],
    format_: Annotated[
        Literal["hf", "onnx"],
        typer.Option(
            "--format",
            help="hf: a Hugging Face folder. onnx: for ONNX Runtime, also in place of TensorFlow's SavedModel.",
        ),
    ] = "hf",
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type of the weights; fp32: the masters. Default: as trained.")
    ] = None,
    verify: Annotated[int, typer.Option(min=0, help="Compare the result on this many sequences; 0: do not.")] = 32,
    shards: Annotated[
        list[Path] | None,
        typer.Option(help="The same checkpoint from another machine's disk; may be repeated.", metavar="FOLDER"),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="For torch.distributed.checkpoint: a folder with the model's config.json.", metavar="FOLDER"),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="In place of --model: a preset of geocomm train.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="The model's tokenizer: byte, or a folder. Default: the run's.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Write a trained model as a folder that other programs load.

    A complete run leaves such a folder in OUTPUT_DIR/export by itself.

    Example:

        geocomm export runs/default my-model
        geocomm export runs/default/checkpoints/step-00000200 my-model --dtype bf16
    """
    from geocomm.train.export.weights_found import find_weights

    find_weights(source)  # before torch and transformers are loaded, which takes seconds
    try:
        from geocomm.train.export.export_run import export_hf, export_onnx
        from geocomm.train.export.export_source import Given
        from geocomm.train.runs.run_log import quiet_transformers
    except ImportError as error:
        fail("export", f"{error}; {install_command('train')}")
    quiet_transformers()
    tell = partial(say, err=True)
    given = Given(shards or (), model, preset, tokenizer)
    record = (export_hf if format_ == "hf" else export_onnx)(source, out, given, dtype, verify, tell)
    size = sum(file.bytes for file in record.files.values()) / 1e6
    line = f"exported to {out} ({format_}, {record.dtype}, {size:.1f} MB)"
    if record.verify is not None:
        largest = record.verify.max_logit_difference
        found = f"differ by at most {largest:.1g}" if largest else "are equal"
        line += f"; logits {found} on {count_text(record.verify.sequences, 'sequence')}"
    if record.held_out is not None and record.held_out.loss is not None:
        line += f"; held-out loss {record.held_out.loss:.6f}"
        if record.held_out.run_loss is not None:
            line += f", in training {record.held_out.run_loss:.6f}"
    typer.echo(line)
    if format_ == "hf":  # no server takes ONNX
        typer.echo(f"serve it: geocomm serve {out}")
