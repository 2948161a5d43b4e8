"""Bytes of tensors that are alive, by watching every operation that makes one."""

import weakref
from typing import Any

import torch
from torch.nn.attention.bias import CausalBias
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class LiveStorage(TorchDispatchMode):
    """While it is entered, counts the storages that operations make until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> "LiveStorage":
        # A mask without data, whose tensor torch cannot make as a subclass while it is watched.
        CausalBias.__new__ = _unwatched
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        del CausalBias.__new__

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            storage = tensor.untyped_storage()
            if storage._cdata not in before and storage._cdata not in self._sizes:
                self._note(storage)
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        self._sizes[storage._cdata] = storage.nbytes()
        weakref.finalize(storage, self._freed, storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _unwatched(cls: type, *args: Any) -> Any:
    with _disable_current_modes():
        return torch.Tensor.__new__(cls, *args)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
