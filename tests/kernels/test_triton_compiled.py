"""The Triton kernels as compiled for GPUs that are not here: they fit, nothing is spilled, tensor cores do the
products.

One product is compiled in the fast suite; everything, for both architectures, in the slow one.
"""

import re
from functools import cache
from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux")
import triton
from quasar_kernels import triton as ops
from quasar_kernels.reference import Transform
from quasar_kernels.triton import compiled
from quasar_kernels.triton.launch import recording
from quasar_kernels.triton.overlap import AHEAD, ahead

ARCHS = sorted(compiled.SHARED_LIMIT)


@pytest.fixture(autouse=True, scope="session")
def compiler_cache(tmp_path_factory):
    """Compiled kernels stay in this session's folder."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


@cache
def everything(arch, width=5):
    return compiled.compile_all(arch, width)


def check(one):
    assert one.local_bytes == 0, f"{one.case} spills {one.local_bytes} bytes a thread"
    assert one.shared_bytes <= compiled.SHARED_LIMIT[one.arch]
    assert one.registers * one.warps * 32 <= 65536


@pytest.mark.parametrize("arch", ARCHS)
def test_the_int8_product_is_on_the_tensor_cores(arch):
    def empty(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device="meta")

    with recording() as noted:
        ops.linear_w8a8(
            empty(5, 4096, dtype=torch.int8), empty(5), empty(6144, 4096, dtype=torch.int8), empty(6144), empty(6144)
        )
    one = compiled.compile_launch("product", noted[0], arch)
    check(one)
    assert one.tensor_core == "mma s8"
    assert "m16n8k32.row.col.satfinite.s32.s8.s8.s32" in one.ptx  # INT32 sums, nothing narrower in between
    # Partial sums, barrier, counted in, barrier (the scalar's broadcast), and only then the sums of others, past L1.
    events = re.findall(r"st\.global|bar\.sync|atom\.global\.gpu\.acq_rel|ld\.global\.cg", one.ptx)
    order = [event for before, event in pairwise(["", *events]) if event != before]
    at = order.index("atom.global.gpu.acq_rel")
    assert order[at - 2 : at] == ["st.global", "bar.sync"]
    assert order[at + 1] == "bar.sync"
    assert order.index("ld.global.cg") > at


def exchanges(one):
    """How often the threads of a block wait for each other."""
    return one.ptx.count("bar.sync")


def test_a_rotation_of_4096_changes_threads_three_times_and_stays_on_the_chip():
    x, w, turn = (torch.empty(*shape, device="meta") for shape in ((5, 4096), (4096,), (1, 1)))
    with recording() as noted:
        ops.rmsnorm_quantize(x, w, 1e-6)
        ops.rmsnorm_quantize(x, w, 1e-6, Transform(rotation=turn))
    plain, turned = (compiled.compile_launch("rotation", one, 90) for one in noted)
    check(turned)
    # An exchange is a barrier behind its writes and one before the next; twelve steps in order would be twelve of them.
    assert exchanges(turned) - exchanges(plain) <= 6
    assert turned.ptx.count("st.global") == plain.ptx.count("st.global")


@pytest.mark.slow
def test_kernels_overlap_from_sm_90_on_and_touch_nothing_but_weights_before_they_may():
    memory = r"griddepcontrol\.\w+|(?:ld|st|atom|red)\.global\S*|cp\.async\.\S+"
    kernels = set()
    for one in everything(90):
        touched = re.findall(memory, one.ptx)
        waited = touched.index("griddepcontrol.wait")
        before = set(touched[:waited])
        assert before <= {"cp.async.bulk.prefetch.L2.global"}, f"{one.kernel} begins with {before}"
        assert bool(before) == ("linear" in one.kernel), one.case
        assert touched[waited + 1] == "griddepcontrol.launch_dependents", f"{one.kernel}: two under way, no more"
        kernels.add(one.kernel)
    assert len(kernels) >= 14
    assert not any("griddepcontrol" in one.ptx for one in everything(80))


@pytest.mark.slow
def test_only_rows_that_start_at_sixteen_bytes_are_read_ahead():
    for inputs, expected in ((4096, True), (4008, False)):
        wq = torch.empty(64, inputs, dtype=torch.int8, device="meta")
        with recording() as noted:
            ops.linear_w8a8(
                torch.empty(5, inputs, dtype=torch.int8, device="meta"),
                torch.empty(5, device="meta"),
                wq,
                torch.empty(64, device="meta"),
            )
        assert ("prefetch" in compiled.compile_launch("product", noted[0], 90).ptx) == expected
    memory = torch.zeros(64 * 4096 + 16, dtype=torch.int8)
    for offset, expected in ((0, AHEAD), (1, 0), (16, AHEAD)):
        assert ahead(memory[offset:][: 64 * 4096].view(64, 4096)) == expected
    assert ahead(torch.zeros(3, 4, dtype=torch.bfloat16)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_a_product_is_rounded_before_it_is_added(arch):
    """As in the reference: nothing is fused in the ops whose bits it defines."""
    found = [one for one in everything(arch) if one.kernel in ("_rotate", "_quantize_rows", "_rope_append")]
    assert {one.kernel for one in found} == {"_rotate", "_quantize_rows", "_rope_append"}
    assert not any("fma" in one.ptx for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_fits_and_spills_nothing(arch, capsys):
    found = everything(arch)
    with capsys.disabled():
        compiled.print_table(found)
    for one in found:
        check(one)
    products = {one.kernel: one.tensor_core for one in found if "linear" in one.kernel}
    assert products == {"_linear_w8a8": "mma s8", "_linear_bf16": "mma bf16"}
    assert all(one.tensor_core == "mma bf16" for one in found if one.kernel == "_attend_stretch")


def odd_calls():
    """Shapes that no model of the table has: heads of other sizes, seven query heads a group, rows that start anywhere,
    the widest norm."""
    bf16, i8, i32 = torch.bfloat16, torch.int8, torch.int32

    def empty(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device="meta")

    for per, size in ((7, 128), (7, 64), (32, 128), (4, 80), (4, 256)):
        q, k, v = empty(5, 2 * per, size, dtype=bf16), *(empty(2, 4096, size, dtype=bf16) for _ in range(2))
        for parents in (None, empty(5, dtype=i32)):
            yield lambda q=q, k=k, v=v, parents=parents: ops.attend(q, k, v, empty(5, dtype=i32), parents)
    for inputs in (4001, 4008):
        yield lambda n=inputs: ops.linear_w8a8(
            empty(5, n, dtype=i8), empty(5), empty(4097, n, dtype=i8), empty(4097), None, empty(5, 4097)
        )
        yield lambda n=inputs: ops.linear_bf16(empty(5, n), empty(4097, n, dtype=bf16))
    k, v = (empty(2, 4096, 64, dtype=bf16) for _ in range(2))
    for start in (1, 4000):  # a number of the host, whatever it is, is one form
        yield lambda start=start: ops.rope_append(
            empty(5, 18 * 64, dtype=bf16), k, v, start, empty(5, 32), empty(5, 32)
        )
    yield lambda: ops.rmsnorm_quantize(empty(5, 16384), empty(16384), 1e-5, Transform(empty(16384), empty(16384)))
    for size, side in ((11008, 43), (4096, 256), (8192, 1)):
        yield lambda n=size, p=side: ops.quantize_rows(empty(5, n, dtype=bf16), Transform(rotation=empty(p, p)))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_odd_shapes_fit_too(arch):
    with recording() as noted:
        for call in odd_calls():
            call()
    forms = {compiled.form(one): one for one in noted}
    for one in forms.values():
        check(compiled.compile_launch(f"{one.kernel.__name__} {one.arguments}"[:300], one, arch))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "kind"), [(80, "mma s8"), (90, "wgmma s8")])
def test_the_tall_int8_tile_fits(arch, kind):
    tall = [
        compiled.compile_launch(label, one, arch)
        for label, one in compiled.launches(compiled.SHAPES[1], 40)
        if "w8a8" in label
    ]
    for one in tall:
        check(one)
        assert one.tensor_core == kind


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_a_tree_sums_over_threads_as_a_chain_does(arch):
    """The bits of a sum depend on how its numbers lie over threads: a tree row equals its chain only if that is the
    same."""
    by_model = {}
    for one in everything(arch):
        if one.kernel == "_attend_stretch":
            by_model.setdefault(one.case.split(" attend")[0], []).append([s for s in one.sums if "f32" in s])
    assert len(by_model) >= 2
    for sums in by_model.values():
        assert len(sums) == 3  # chain, window, tree
        assert sums[0]
        assert sums[0] == sums[1] == sums[2]
