"""Entry point of the group `torch.backends`: torch calls it at the end of `import torch`.

It only tells torch names, and can never make `import torch` fail. Nothing is imported at module level
(torch is half imported at that point, and a user's `import geocomm` may be what began it); the native library is loaded
when the first process group is made.
"""


def register() -> None:
    """Register the backend name "geocomm" for CPU and CUDA tensors, and the init_method geocomm://host:port.

    Idempotent; never raises.
    """
    try:
        import importlib
        from typing import Any, cast

        import torch.distributed as dist

        if not dist.is_available() or "geocomm" in dist.Backend.backend_list:
            return

        def create(backend_options: object, group_options: object) -> object:
            from geocomm.backend.group_creation import create_backend

            return create_backend(backend_options, group_options)

        def meet(url: str, *arguments: object, **options: object) -> object:
            from geocomm.rendezvous.hub_rendezvous import meet_at_hub

            return meet_at_hub(url, *arguments, **options)  # pyright: ignore[reportArgumentType] - as torch calls it

        # torch leaves both functions partly without types.
        cast(Any, dist.Backend).register_backend("geocomm", create, extended_api=True, devices=["cpu", "cuda"])
        importlib.import_module("torch.distributed.rendezvous").register_rendezvous_handler("geocomm", meet)
    except Exception as error:
        import logging

        logging.getLogger("geocomm").warning("geocomm: the backend could not be registered with torch: %r", error)
