"""Names CUDA runtime calls while a block of code runs, through CUPTI's callback API.

CUPTI sees the calls of a statically linked runtime too, which preloading a library would not.
"""

import contextlib
import ctypes
import importlib.util
import pathlib
from collections import Counter

RUNTIME_API = 2  # CUPTI_CB_DOMAIN_RUNTIME_API
ENTER = 0  # CUPTI_API_ENTER
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


def _load():
    """libcupti from the CUDA wheels or the system; OSError if there is none."""
    places = []
    found = importlib.util.find_spec("nvidia")
    for root in found.submodule_search_locations if found else []:
        places += sorted(pathlib.Path(root).glob("**/libcupti.so.*"))
    for place in [*places, "libcupti.so", "libcupti.so.13", "libcupti.so.12"]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(place))
    raise OSError("no libcupti found among the nvidia wheels or on the system")


@contextlib.contextmanager
def listed():
    """Yields a list that holds, once the block is left, the names of its runtime calls in their order
    ("cudaStreamSynchronize_v3020" without its suffix)."""
    cupti = _load()
    calls = []
    names = {}

    def on_call(_data, domain, call, info):
        site = ctypes.cast(info, ctypes.POINTER(ctypes.c_int))[0]
        if site == ENTER:
            calls.append(call)
            if call not in names:
                text = ctypes.c_char_p()
                cupti.cuptiGetCallbackName(domain, ctypes.c_uint32(call), ctypes.byref(text))
                names[call] = text.value.decode().split("_")[0] if text.value else str(call)

    callback = CALLBACK(on_call)
    subscriber = ctypes.c_void_p()

    def need(status, what):
        if status:
            raise OSError(f"CUPTI {what} failed with status {status}")

    need(cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None), "subscribe")
    by_name = []
    try:
        need(cupti.cuptiEnableDomain(1, subscriber, RUNTIME_API), "enable")
        yield by_name
    finally:
        cupti.cuptiUnsubscribe(subscriber)
        by_name += [names[call] for call in calls]


@contextlib.contextmanager
def counted():
    """Yields a Counter, which holds the same names once the block is left."""
    counts = Counter()
    with listed() as names:
        yield counts
    counts.update(names)
