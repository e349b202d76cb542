"""The entries of metrics.jsonl and events.jsonl: the fields of each kind, each said once.

`make_reference.py` makes docs/reference/metrics.md of these tables; a test compares them with the entries of a real
run.
"""

from __future__ import annotations

from geocomm.metrics import schema

_STEP_NUMBER = "steps done"
_COUNTED = {metric.name: metric.help for metric in schema.COUNTERS}

SITE = {
    "ranks": "how many ranks the site has",
    "tokens": "that its ranks trained on",
    "step_seconds": "mean of its ranks",
    "tokens_per_second": "tokens by step_seconds",
    "input_seconds": "in which a rank waited for its data, mean of its ranks; of `steps`, where there are several",
    "checkpoint_seconds": "the same for writing a checkpoint before these steps, not in step_seconds",
    **_COUNTED,
}
"""What `sites` of a step holds of a site: counters summed over its ranks, times as their mean."""

SITE_REPORT = {
    "step": _STEP_NUMBER,
    "steps": "since it told the last time: what follows is of these",
    "loss": "of its last step",
    "rounds": "merged since the run began",
    "held_back": "steps for which a round could not begin, since the run began",
    "rounds_not_finite": "in which its weights were left out, since the run began",
    **SITE,
}
"""What `sites` of a `sites` entry holds of a site."""


ENTRIES: dict[str, dict[str, str]] = {
    "start": {
        "step": _STEP_NUMBER + " before",
        "resumed": "from a checkpoint",
        "consumed": "sequences trained on before",
        "ranks_before": "that wrote it",
        "backend": "",
        "codec": "null: the backend has none",
        "device": "cpu or cuda",
        "sites": "number of ranks by site",
        "parameters": "",
        "train_sequences": "",
        "held_out_sequences": "",
        "config": "all of it",
    },
    "step": {
        "step": "from 1",
        "loss": "mean over all ranks, or the site's",
        "lr": "",
        "grad_norm": "before clipping",
        "loss_scale": "of fp16",
        "skipped": "by fp16",
        "sync": "of rank 0. With sync.codec: codec of the next step, nmse of the worst bucket, skipped_steps, "
        "fallbacks. With sync.mode local: joint (gradients are averaged over all ranks), and local steps as in stats()",
        "step_seconds": "on rank 0",
        "tokens": "",
        "tokens_per_second": "",
        "input_seconds": "waiting for data, mean of the ranks",
        "checkpoint_seconds": "writing a checkpoint before this step, not in step_seconds",
        **_COUNTED,
        "site": "of rank 0",
        "codec": "",
        "backend": "",
        "sites": "per site: "
        + ", ".join(name for name in SITE if name not in _COUNTED)
        + ", and the counters of a step",
    },
    "sites": {
        "step": _STEP_NUMBER + " at the site that is furthest",
        "tokens_per_second": "sum over the sites",
        "sites": "with local steps, every few steps: "
        + ", ".join(name for name in SITE_REPORT if name not in SITE)
        + ", and what `sites` of a step has",
    },
    "eval": {
        "step": _STEP_NUMBER,
        "loss": "on the held-out sequences; with local steps, of the anchor",
        "sequences": "",
        "seconds": "",
    },
    "end": {"step": _STEP_NUMBER, "complete": "false: a signal stopped the run"},
}
"""Fields by kind, besides kind and time, which every entry has. Events of rank 0 stand among these entries."""
