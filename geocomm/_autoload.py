"""Entry point of the group `torch.backends`: torch calls it at the end of `import torch`.

It tells torch names, and has geocomm look at each group before torch makes it. It can never make `import torch` fail.
Nothing is imported at module level (torch is half imported at that point, and a user's `import geocomm` may be what
began it); the native library is loaded when the first process group is made.
"""

_READ = {
    *("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name", "backend_options"),
    "timeout",
}
"""The arguments of torch's function that makes a group, as far as `make_group` reads or changes them."""


def register() -> None:
    """Register the backend name "geocomm" for CPU and CUDA tensors, and the init_method geocomm://host:port; look at
    groups of other backends (geocomm/group/backend/other_backends.py); keep the error of a rank of `geocomm run`.

    Idempotent; never raises.
    """
    try:
        import functools
        import importlib
        import inspect
        from typing import Any, cast

        import torch.distributed as dist

        if not dist.is_available() or "geocomm" in dist.Backend.backend_list:
            return

        def create(backend_options: object, group_options: object) -> object:
            if getattr(backend_options, "enable_reconfigure", False):  # since torch 2.14
                from geocomm.group.backend.reconfiguration import create_reconfigurable

                return create_reconfigurable(backend_options, group_options)
            from geocomm.group.backend.group_creation import create_backend

            return create_backend(backend_options, group_options)

        def meet(url: str, *arguments: object, **options: object) -> object:
            from geocomm.group.rendezvous.hub_rendezvous import meet_at_hub

            return meet_at_hub(url, *arguments, **options)  # pyright: ignore[reportArgumentType] - as torch calls it

        # torch leaves both functions partly without types.
        cast(Any, dist.Backend).register_backend("geocomm", create, extended_api=True, devices=["cpu", "cuda"])
        importlib.import_module("torch.distributed.rendezvous").register_rendezvous_handler("geocomm", meet)
        importlib.import_module("geocomm.core.rank_error").watch()

        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        make = c10d._new_process_group_helper
        signature = inspect.signature(make)
        if missing := _READ - signature.parameters.keys():
            raise TypeError(f"{make.__name__} has no {', '.join(sorted(missing))}")

        @functools.wraps(make)
        def check_and_make(*arguments: Any, **options: Any) -> Any:
            from geocomm.group.backend.other_backends import make_group

            return make_group(make, signature.bind(*arguments, **options))

        c10d._new_process_group_helper = check_and_make
        source_of = c10d._get_split_source

        @functools.wraps(source_of)
        def source_of_torchs_own(*arguments: Any, **options: Any) -> Any:
            from geocomm.group.backend.in_place import split_source

            return split_source(source_of(*arguments, **options))

        c10d._get_split_source = source_of_torchs_own
    except Exception as error:
        import logging

        logging.getLogger("geocomm").warning("geocomm does not fit this torch: %r", error)
