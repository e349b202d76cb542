"""The part of a run's configuration that says what text is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from geocomm.core.settings import Fraction, Section


class DataConfig(Section):
    """Text, tokenizer and packing."""

    source: Literal["builtin", "text", "jsonl", "dataset", "catalog"] = Field(
        "builtin",
        description="builtin: the text of Python's own help. text: UTF-8 files. jsonl: a JSON object a line. dataset: "
        "of Hugging Face's `save_to_disk`. catalog: `FOLDER@VERSION` of `geocomm data add`.",
    )
    paths: tuple[Path, ...] = Field(
        (), description="Files or folders of `source`; of a folder, all files with the source's suffix, in name order."
    )
    text_field: str = Field("text", description="Field (jsonl) or column (dataset) that holds the text.")
    split: str = Field("train", description="Split of a saved dataset that has several.")
    tokenizer: str = Field(
        "byte", description="`byte` (256 bytes and one end-of-text token) or the folder of a local Hugging Face one."
    )
    sequence_length: Annotated[int, Field(ge=2)] = Field(256, description="Tokens per packed training sequence.")
    held_out_fraction: Fraction = Field(
        0.02, description="Share of the packed sequences kept for evaluation: every n-th one, never trained on."
    )
    cache_dir: Path = Field(
        Path("~/.cache/geocomm/tokens"), description="Where tokenized text is kept; made on each machine."
    )

    @model_validator(mode="after")
    def _paths_match_source(self) -> Self:
        if self.source == "builtin" and self.paths:
            raise ValueError("paths are given but source is builtin; set source to text, jsonl or dataset")
        if self.source != "builtin" and not self.paths:
            raise ValueError(f"source {self.source} needs at least one entry in paths")
        if self.source == "catalog" and len(self.paths) > 1:
            raise ValueError("source catalog takes one entry in paths")
        return self
