"""Three ways to run a pass: op by op, as a plan, as a graph. The results are the same.

## Idea

The arithmetic of a pass is fixed (`network`). What differs is who drives it. `OpExecutor` calls the ops one after the
other from Python, which is the definition, and the only way that lets taps look inside. `PlanExecutor` hands all layers
to the C++ backend in one call, because Python between a few hundred small ops would cost as much as they do.
`GraphExecutor` replays captured CUDA graphs, because launching the kernels one by one would take the host longer than
the device needs to read the weights (`cuda_graphs`).

## Choice

A decoder chooses its executor once, when it is made, from what its backend declares and from what its linears can do.
A plan hands the passes that it cannot run (those with taps) to the ops.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol, cast

import torch
from quasar_kernels.backend import GraphBackend, Plan, PlanBackend
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

from quasar_lab.models.cuda_graphs import TOP, GraphPasses, Numbers, Results
from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.network import Network
from quasar_lab.models.passes import DeviceRows, HostRows, Output, Pass, Taps


class Executor(Protocol):
    """Runs the passes of one decoder."""

    def new_cache(self, rows: int) -> KVCache:
        """An empty cache of `rows` rows."""

    def run(self, asked: Pass, cache: KVCache) -> Output:
        """One pass, which writes its rows into the cache and leaves the cache's length to the caller."""

    def block(self, x: Tensor, index: int, cache: KVCache, taps: Taps) -> Tensor:
        """One block over a whole sequence from position 0: stream f32 [M, hidden] → stream."""


class OpExecutor:
    """Every op is a call of its own."""

    def __init__(self, network: Network):
        self._network = network

    def new_cache(self, rows: int) -> KVCache:
        config, dtype = self._network.config, self._network.ops.activations(torch.device("cpu"))
        shape = config.layers, config.kv_heads, rows, config.head_dim
        return KVCache(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype), rows)

    def run(self, asked: Pass, cache: KVCache) -> Output:
        network = self._network
        with single_torch_thread() if network.ops.capabilities.own_threads else nullcontext():
            x = self._layers(network.embed(torch.as_tensor(asked.ids)), asked, cache)
            hidden = network.final_norm(x) if asked.hidden else None
            return Output(network.logits(x[-1:] if asked.last else x, asked.taps), hidden)

    def _layers(self, x: Tensor, asked: Pass, cache: KVCache) -> Tensor:
        """The stream through the blocks of the pass."""
        rows = self._rows(asked)
        for index in asked.layers:
            x = self._network.block(x, index, cache, rows, asked.taps)
        return x

    def _rows(self, asked: Pass) -> HostRows:
        cos, sin = self._network.rotary.covering(max(asked.positions) + 1)
        places = torch.as_tensor(asked.positions)
        return HostRows(asked.start, asked.lengths, asked.parents, cos[places], sin[places])

    def block(self, x: Tensor, index: int, cache: KVCache, taps: Taps) -> Tensor:
        return self._network.block(x, index, cache, _sequence(self._network, x.shape[0]), taps)


class PlanExecutor(OpExecutor):
    """All layers of a pass are one call of the backend: the same ops, the same bits, no Python between them."""

    def __init__(self, network: Network, plan: Plan):
        super().__init__(network)
        self._plan = plan

    def _layers(self, x: Tensor, asked: Pass, cache: KVCache) -> Tensor:
        if asked.taps is not None:
            return super()._layers(x, asked, cache)
        rows = self._rows(asked)
        return self._plan.run(
            x, asked.layers, cache.k, cache.v, rows.start, rows.cos, rows.sin, rows.lengths, rows.parents
        )


class GraphExecutor:
    """Passes on a device: replayed graphs where the work is the same every time, else one launch after the other."""

    def __init__(self, network: Network, backend: GraphBackend, device: str):
        self._network, self._backend = network, backend
        dtype = backend.activations(torch.device(device))
        self._passes = GraphPasses(network.config, backend.runtime(), dtype, device, network.rotary)

    def new_cache(self, rows: int) -> KVCache:
        return self._passes.new_cache(rows)

    def run(self, asked: Pass, cache: KVCache) -> Output:
        launch = partial(self._launch, layers=asked.layers, taps=None if asked.taps is None else _on_host(asked.taps))
        return self._passes.run(launch, asked, cache)

    def block(self, x: Tensor, index: int, cache: KVCache, taps: Taps) -> Tensor:
        return self._network.block(x, index, cache, _sequence(self._network, x.shape[0]), _on_host(taps))

    def _launch(
        self, numbers: Numbers, cache: KVCache, results: Results, *, layers: Sequence[int], taps: Taps | None
    ) -> None:
        """Every op of a pass on the device: what a graph captures."""
        network, (cos, sin) = self._network, cache.arena.tables
        rows = DeviceRows(
            start=numbers.start,
            positions=numbers.positions,
            lengths=numbers.lengths,
            parents=numbers.parents,
            cos=cos,
            sin=sin,
            reach=numbers.reach,
        )
        x = network.embed(numbers.ids)
        for index in layers:
            x = network.block(x, index, cache, rows, taps)
        if results.hidden is not None:
            self._backend.rmsnorm(x, network.norm, network.config.eps, out=results.hidden)  # type: ignore[call-arg]
        x = x[-results.logits.shape[0] :]
        network.logits(x, taps, out=results.logits)
        self._backend.top_table(results.logits, min(TOP, network.config.vocab), out=results.top)


def _sequence(network: Network, count: int) -> HostRows:
    """The rows of a whole sequence of `count` tokens from position 0."""
    cos, sin = network.rotary.covering(count)
    return HostRows(0, list(range(1, count + 1)), None, cos[:count], sin[:count])


def choose_executor(network: Network, device: str) -> Executor:
    """The executor for what the backend declares."""
    capabilities = network.ops.capabilities
    if capabilities.graphs:
        return GraphExecutor(network, cast(GraphBackend, network.ops), device)
    plan = _plan(network, cast(PlanBackend, network.ops)) if capabilities.plan else None
    return OpExecutor(network) if plan is None else PlanExecutor(network, plan)


def _plan(network: Network, backend: PlanBackend) -> Plan | None:
    """The plan of a network; None where it has a linear that a plan cannot run."""
    layers = []
    for layer in network.layers:
        planned = layer.planned()
        if planned is None:
            return None
        layers.append(planned)
    config = network.config
    return backend.Plan(layers, groups=config.kv_heads, size=config.head_dim, eps=config.eps, window=config.window)


def _on_host(taps: Taps) -> Taps:
    """Taps see FP32 on the CPU, whatever the device computes with."""
    return lambda layer, projection, x: taps(layer, projection, x.float().cpu())
