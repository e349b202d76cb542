"""A Hugging Face folder as an ONNX graph: `input_ids` and `attention_mask` in, `logits` of every position out.

The graph computes in float32 whatever the folder's dtype, since ONNX Runtime has few 16-bit operators for the CPU.
16-bit weights become float32 without loss.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_packages import need_packages
from geocomm.train.export.onnx_facts import OnnxFacts

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
LARGEST_DIFFERENCE = 1e-3
"""The most by which a logit of ONNX Runtime may differ from that of transformers. Rounding made up to 2e-5 in models
like the preset tiny, and 1e-4 in one like small with weights five times a fresh model's. One wrong expert makes 0.1
and more."""
_NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "README.md", "export.json")


def write_onnx(hf_folder: Path, out: Path, verify: int, say: Callable[[str], None]) -> OnnxFacts:
    """Writes graph, weights and the folder's other files into `out`, and compares with transformers.

    `out` exists, and is the caller's to remove where this fails. At least `verify` sequences are compared, and more
    until every expert of every layer was used or a limit is reached; 0 compares none. Needs memory for about four
    copies of the model in float32.

    Raises BadInput for a missing package, a model whose graph would be too large, and logits that differ.
    """
    need_packages("onnx", "onnx", "onnxscript", "onnxruntime")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from geocomm.train.export.onnx_check import compare_logits
    from geocomm.train.export.onnx_graph import check_size, save_graph

    check_size(AutoConfig.from_pretrained(hf_folder, local_files_only=True))
    model = AutoModelForCausalLM.from_pretrained(hf_folder, local_files_only=True, dtype=torch.float32).eval()
    shutil.copytree(hf_folder, out, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
    say("making the ONNX graph, with all experts in it; this takes a while")
    save_graph(model, out / MODEL_FILE)
    size_bytes = sum((out / name).stat().st_size for name in (MODEL_FILE, WEIGHTS_FILE))
    say(f"{MODEL_FILE}: {size_bytes / 1e6:.1f} MB with its weights")
    facts = compare_logits(model, out / MODEL_FILE, verify)
    if not facts.largest_difference <= LARGEST_DIFFERENCE:  # NaN, too
        raise BadInput(
            f"the ONNX graph's logits differ from transformers' by {facts.largest_difference:.1e}, more than "
            f"{LARGEST_DIFFERENCE:.0e}: export hf instead, and please report the model's config.json"
        )
    if verify and not facts.positions:
        raise BadInput(
            "the ONNX graph could not be checked: the model's choice of experts is a tie or no number everywhere"
        )
    if verify:
        say(f"onnxruntime: {facts.positions} positions, largest difference {facts.largest_difference:.1e}")
        if facts.experts_not_reached:
            first = ", ".join(f"layer {layer} expert {expert}" for layer, expert in facts.experts_not_reached[:3])
            say(
                f"not compared: {len(facts.experts_not_reached)} of {facts.experts} experts, which the model sent no "
                f"token to in {facts.sequences} random sequences ({first}, …)"
            )
    return facts
