"""PowerSGD between the sites: torch's own hook, set up for them."""
# Annotations are evaluated here: DDP compares those of a hook with the classes themselves.

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.errors import InvalidArgumentError


def power_sgd_hook(
    model: DistributedDataParallel, rank: int = 4, *, warmup_steps: int = 10, min_compression_rate: float = 2.0
) -> PowerSGDState:
    """Reduce factors of each matrix in place of the matrix (Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019).

    torch's hook, with error feedback (of all ranks, on each rank: one copy of the gradients) and warm start. The
    factors cross with the codec of the model's group.

    Args:
        model: With a single bucket, `DistributedDataParallel(…, bucket_cap_mb=N)`, N above the size of the gradients in
            MiB. The hook issues collectives from callbacks, and with several buckets their order would differ between
            ranks: then the second backward raises InvalidArgumentError.
        rank: Of the factors, 1 or more.
        warmup_steps: First exact steps, 2 or more.
        min_compression_rate: A matrix is factored where that saves so much.

    Returns:
        torch's state, to be pickled into checkpoints.

    Raises:
        InvalidArgumentError: A number is out of its range; the model is not of DistributedDataParallel; or it has
            find_unused_parameters=True, whose collective would meet the hook's in another order on each rank.
    """
    if not isinstance(model, DistributedDataParallel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"a DDP hook takes a DistributedDataParallel model, not {type(model).__name__}")
    if rank < 1 or warmup_steps < 2:
        raise InvalidArgumentError(f"rank ({rank}) must be 1 or more, warmup_steps ({warmup_steps}) 2 or more")
    if model.find_unused_parameters and not model.static_graph:
        raise InvalidArgumentError(
            "power_sgd_hook does not work with find_unused_parameters=True: DDP's collective about them would meet the "
            "hook's in another order on each rank; make the model without, and give every parameter a gradient"
        )
    settings: dict[str, Any] = {
        "matrix_approximation_rank": rank,
        "start_powerSGD_iter": warmup_steps,
        "min_compression_rate": min_compression_rate,
        "orthogonalization_epsilon": 1e-8,  # a gradient of zeros has columns of length 0
    }
    untyped: Any = model
    state = PowerSGDState(untyped.process_group, **settings)
    untyped.register_comm_hook(state, _one_bucket_power_sgd)
    return state


def _one_bucket_power_sgd(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if bucket.index() > 0 or not bucket.is_last():
        raise InvalidArgumentError(
            "power_sgd_hook works with one bucket of gradients; make the model with "
            "DistributedDataParallel(..., bucket_cap_mb=N), N above the size of all its gradients in MiB, and with "
            "gradients of one dtype"
        )
    return powerSGD_hook(state, bucket)
