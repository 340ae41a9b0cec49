"""A pass on a GPU as one launch: static buffers, and one CUDA graph per width.

A verify pass of an 8 B model is some 350 kernels. Launched one by one from Python, each costs the host 10 to 40 µs,
together more than the 4 ms in which an H200 reads the BF16 weights: the GPU waits for the host, and halving the bytes
would change nothing that a clock can see. A CUDA graph is such a sequence of launches, recorded once; replaying it is
one call. What remains is what the kernels take, so the bandwidth shows.

A graph fixes everything: the kernels, their grids, every address, every number passed by value. So whatever changes
from pass to pass lies on the device: ids, positions, lengths and the first free cache row, in one buffer of 4 × 64
numbers that one copy fills; kernels read them there. Widths 1…64 have a graph each (`ROWS`), captured when first used.
Results go to buffers of their own and are copied out, so that a caller may keep them. In between, a capture
allocates from a private pool, which all graphs of a decoder share: they run one after the other, each writes what it
reads, and nothing in the pool outlives a replay.

A graph also fixes the cache it writes. So `GraphPasses` owns *arenas*, keys and values of rounded-up capacity. A new
cache leases one that no living cache holds, and only a new arena is captured anew. Runs that follow each other share
one arena and its graphs; two caches in use at once have two.

What comes once is not worth a graph: a prompt of more than `SHORT` rows runs eagerly, in chunks of `CHUNK` rows that
bound the memory of the activations; so do trees, taps and layer subsets.

What is lost: the seconds of the first pass of a width (kernels compile, then capture), a pool of memory per decoder,
and dynamic control flow: nothing in a pass may look at a number that lies on the device. Source: CUDA C++ Programming
Guide, "CUDA Graphs"; torch.cuda.CUDAGraph.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from quasar_kernels.cuda_runtime import Runtime
from torch import Tensor

from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.models.passes import Output, Pass
from quasar_lab.models.rope import RotaryTables

ROWS = 64
"""The widest graph. A verify pass has up to 17 rows, an audit some fifty."""
SHORT = 16
CHUNK = 256
TOP = 5
"""Likeliest tokens that a pass finds in every row."""
SMALLEST_ARENA, ARENA_STEP = 1024, 4096


@dataclass(frozen=True)
class Numbers:
    """What differs from pass to pass, i32 on the device: ids, positions and lengths [M], start [1] (the first row of
    the cache to write), parents [M] or None. reach: the largest length, None in a graph, where it is any."""

    ids: Tensor
    positions: Tensor
    lengths: Tensor
    start: Tensor
    parents: Tensor | None = None
    reach: int | None = None


@dataclass(frozen=True)
class Results:
    """Where a pass writes: logits f32 [M, V], or [1, V] for the last row alone; hidden f32 [M, H] or None; top f64
    [·, 2 TOP + 1] = ids, values and log Σ exp of the logits' rows, all exact, in one tensor that one transfer reads."""

    logits: Tensor
    hidden: Tensor | None
    top: Tensor

    def copied(self) -> "Results":
        """The same numbers in memory of their own."""
        hidden = None if self.hidden is None else self.hidden.clone()
        return Results(self.logits.clone(), hidden, self.top.clone())


LaunchPass = Callable[[Numbers, KVCache, Results], None]
"""Launches every op of a pass. It may read no number from the device."""


class Arena:
    """Keys and values A [layers, kv_heads, rows, head_dim] that caches lease one after the other. What a former lease
    left there is never read: lengths say what is. tables: cos and sin, for at least as many positions."""

    def __init__(self, config: ModelConfig, rows: int, dtype: torch.dtype, device: str, tables: tuple[Tensor, Tensor]):
        self.tables = tables
        shape = config.layers, config.kv_heads, rows, config.head_dim
        self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        self._holder: Callable[[], KVCache | None] = lambda: None

    @property
    def rows(self) -> int:
        return self.k.shape[2]

    @property
    def free(self) -> bool:
        """Whether no living cache holds it."""
        return self._holder() is None

    def lease(self, capacity: int) -> KVCache:
        """An empty cache of `capacity` rows, which holds the arena while it lives."""
        cache = KVCache(self.k, self.v, capacity, arena=self)
        self._holder = weakref.ref(cache)
        return cache


class GraphPasses:
    """The passes of one decoder on a device, in the order of its stream; one thread at a time.

    runtime: the device. dtype: of the cache. rotary: the tables, on the device.
    """

    def __init__(self, config: ModelConfig, runtime: Runtime, dtype: torch.dtype, device: str, rotary: RotaryTables):
        self._config, self._runtime, self._dtype, self._device = config, runtime, dtype, device
        self._rotary, self._chunk = rotary, CHUNK
        self._numbers = torch.zeros(4 * ROWS, dtype=torch.int32, device=device)
        self._results = self._room(ROWS, ROWS, hidden=True)
        self._arenas: list[Arena] = []
        # By arena, weakly: a graph holds addresses, and must not be replayed when they are another's.
        self._graphs: weakref.WeakKeyDictionary[Arena, dict[tuple[int, bool], Callable[[], None]]]
        self._graphs = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache of `capacity` rows: the smallest free arena that fits, or a new one. Free arenas that are too
        small then go, with their graphs: memory is bounded by the caches that live at once."""
        with self._lock:
            free = [arena for arena in self._arenas if arena.free]
            fitting = [arena for arena in free if arena.rows >= capacity]
            if not fitting:
                self._arenas = [arena for arena in self._arenas if arena not in free]
                rows = self._rounded(capacity)
                tables = self._rotary.covering(rows)
                fitting = [Arena(self._config, rows, self._dtype, self._device, tables)]
                self._arenas += fitting
            return min(fitting, key=lambda arena: arena.rows).lease(capacity)

    def _rounded(self, capacity: int) -> int:
        """Rows of an arena for `capacity`: a power of two, then a multiple of 4096, at most the context."""
        doubled = max(SMALLEST_ARENA, 1 << (capacity - 1).bit_length())
        return min(doubled if doubled <= ARENA_STEP else -(-capacity // ARENA_STEP) * ARENA_STEP, self._config.context)

    def run(self, launch: LaunchPass, asked: Pass, cache: KVCache) -> Output:
        """One pass behind the cache's rows. Its results are the caller's to keep."""
        captured = asked.plain and len(asked.ids) <= (SHORT if asked.last else ROWS)
        step = len(asked.ids) if captured or not asked.plain else self._chunk
        kept: list[Results] = []
        with self._lock:
            self._reach(cache.arena, max(asked.positions) + 1)
            first = None
            for begin in range(0, len(asked.ids), step):
                results, work = self._piece(launch, asked, cache, slice(begin, begin + step), captured)
                if first is None:  # what the host prepares is no part of what the device takes
                    first = self._runtime.mark()
                work()
                kept.append(results.copied() if captured else results)  # the next pass writes the buffers of a graph
            end = self._runtime.mark()
        wanted = kept[-1:] if asked.last else kept
        rows = slice(-1, None) if asked.last else slice(None)
        return Output(
            logits=_joined([results.logits[rows] for results in wanted]),
            hidden=_joined([results.hidden for results in kept if results.hidden is not None])
            if asked.hidden
            else None,
            top=_joined([results.top[rows] for results in wanted]),
            seconds=None if first is None else partial(self._runtime.seconds, first, end),
        )

    def _reach(self, arena: Arena, positions: int) -> None:
        """Tables long enough for a pass that stands further back than its arena has rows. A graph holds the address of
        its tables, so those of the arena go when these do."""
        if positions > len(arena.tables[0]):
            arena.tables = self._rotary.covering(positions)
            self._graphs.pop(arena, None)

    def _piece(
        self, launch: LaunchPass, asked: Pass, cache: KVCache, part: slice, captured: bool
    ) -> tuple[Results, Callable[[], None]]:
        """Where a part of the pass writes, and what runs it: a replay, or its launches one by one."""
        columns = [asked.ids[part], asked.positions[part], asked.lengths[part], [cache.length + part.start]]
        if captured:
            return self._graph(launch, cache, self.send(columns, self._numbers), asked.hidden)
        rows = len(columns[0])
        results = self._room(rows, 1 if asked.last else rows, asked.hidden)
        numbers = self.send(columns if asked.parents is None else [*columns, asked.parents])
        return results, partial(launch, replace(numbers, reach=max(columns[2])), cache, results)

    def send(self, columns: Sequence[Sequence[int]], out: Tensor | None = None) -> Numbers:
        """The columns of `Numbers`, in its order and as long as they are there, in one copy to the device. Each starts
        at a multiple of 16 bytes, for which kernels are compiled."""
        pad = ROWS if out is not None else -(-max(map(len, columns)) // 4) * 4
        sent = self._runtime.upload([n for column in columns for n in (*column, *[0] * (pad - len(column)))], out)
        return Numbers(*(part[: len(column)] for part, column in zip(sent.split(pad), columns, strict=True)))

    def _graph(
        self, launch: LaunchPass, cache: KVCache, numbers: Numbers, hidden: bool
    ) -> tuple[Results, Callable[[], None]]:
        """The buffers of a pass of at most ROWS rows and what replays its graph, captured when it is the first."""
        rows, room = numbers.ids.shape[0], self._results
        assert room.hidden is not None
        results = Results(room.logits[:rows], room.hidden[:rows] if hidden else None, room.top[:rows])
        graphs = self._graphs.setdefault(cache.arena, {})
        replay = graphs.get((rows, hidden))
        if replay is None:
            replay = graphs[rows, hidden] = self._runtime.capture(lambda: launch(numbers, cache, results))
        return results, replay

    def _room(self, rows: int, logits: int, hidden: bool) -> Results:
        """Buffers for a pass of so many rows, with so many rows of logits."""
        config, room = self._config, partial(torch.empty, device=self._device)
        top = room(logits, 2 * min(TOP, config.vocab) + 1, dtype=torch.float64)
        return Results(room(logits, config.vocab), room(rows, config.hidden) if hidden else None, top)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
