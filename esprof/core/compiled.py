"""Compiled functions over arrays: numba, with machine code cached on disk for the next process.

numba's own cache unpickles any file next to the source or in NUMBA_CACHE_DIR, and raises on a corrupt one. This cache reads
only files in a folder that no other user can write to, with a valid checksum, and of an unchanged function. All other files
are ignored and the function is compiled again.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.serialize import dumps

from esprof.core.disk import cache_of_user

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_DIGEST = sha256().digest_size


def compiled(function: _Function) -> _Function:
    """Compile `function` on its first call with each combination of argument types. It runs without the GIL.

    Division by zero is no error, as in numpy. `function` must be at the top level of a module. The globals that it reads
    may be compiled functions, scalars, tuples, enums and arrays; their values at the first call are compiled in.
    """
    return _compile(function, _OPTIONS)


def compiled_in_place(function: _Function) -> _Function:
    """Compile a `function` inline into each compiled caller. It must not create arrays.

    Array references are not counted: the atomic operations at each call would take longer than most functions that are
    called in a loop. A tuple of arrays is therefore a valid argument. Otherwise this is like `compiled`.
    """
    return _compile(function, _OPTIONS | {"_nrt": False, "forceinline": True})


def _compile(function: _Function, options: dict[str, Any]) -> _Function:
    dispatcher: Any = numba.njit(**options)(function)
    if dispatcher is not function:  # They are the same under NUMBA_DISABLE_JIT.
        dispatcher._cache = _DiskCache(function, options)
    return cast(_Function, dispatcher)


class _DiskCache(NullCache):
    """numba's cache of one function: a file per signature, which holds fingerprint, checksum and code."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options

    @property
    def cache_path(self) -> str | None:
        folder = cache_folder()
        return None if folder is None else str(folder)

    @cached_property
    def _fingerprint(self) -> bytes:
        identity = [repr(self._options), *_identity(self._function, set())]
        return sha256("\0".join(identity).encode()).digest()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for arguments of these types, or None."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        try:
            content = path.read_bytes() if path else b""
        except OSError:
            return None
        payload = content[2 * _DIGEST :]
        if content[: 2 * _DIGEST] != self._fingerprint + sha256(payload).digest():
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(payload))  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the code for arguments of these types, if possible."""
        path = self._path(sig, data.codegen)
        if path is None or data.library.has_dynamic_globals:  # Addresses of this process are compiled in.
            return
        payload: bytes = dumps(data._reduce())  # type: ignore[no-untyped-call]
        with suppress(OSError):  # a full disk, a quota
            _write(path, self._fingerprint + sha256(payload).digest() + payload)

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        folder = cache_folder()
        if folder is None:
            return None
        code = self._function.__code__
        variant = repr((code.co_filename, numba.__version__, sys.version, sig, codegen.magic_tuple()))
        name = f"{self._function.__module__}.{code.co_name}"
        return folder / f"{name}-{sha256(variant.encode()).hexdigest()[:16]}.bin"


@cache
def cache_folder() -> Path | None:
    """Folder of the machine code, in NUMBA_CACHE_DIR or in the user's cache folder; None if it is not private."""
    return cache_of_user("kernels", os.environ.get("NUMBA_CACHE_DIR"))


def _write(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: a reader sees the complete new or the old content."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _identity(function: Callable[..., Any], known: set[Callable[..., Any]]) -> Iterator[str]:
    """Yield all that the machine code of `function` depends on: its byte code and the globals it reads, including those of
    other compiled functions, but not line numbers."""
    known.add(function)
    yield repr(function.__defaults__)
    for code in _codes(function.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        yield repr((code.co_code, constants, code.co_names, code.co_varnames))
        for name in code.co_names:
            yield from _value(function.__globals__.get(name), known)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the comprehensions and lambdas in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _value(value: object, known: set[Callable[..., Any]]) -> Iterator[str]:
    if isinstance(value, Dispatcher):
        if value.py_func not in known:
            yield from _identity(value.py_func, known)
    elif isinstance(value, type) and issubclass(value, Enum):
        yield repr([(member.name, member.value) for member in value])
    elif isinstance(value, _Intrinsic):
        # An intrinsic is generated by other code, so its whole source file counts.
        yield sha256(Path(value._defn.__code__.co_filename).read_bytes()).hexdigest()
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype.str, value.shape, value.tobytes()))
    elif isinstance(value, bool | int | float | str | tuple | np.generic):
        yield repr(value)
