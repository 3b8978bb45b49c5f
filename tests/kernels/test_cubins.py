"""The rendered kernels compile to machine code for all architectures of `DEVICES`: on tensor cores,
without spills, and in the shared memory that there is."""

import re
from dataclasses import replace

import pytest
import torch

triton = pytest.importorskip("triton")

from gdpa_inductor.kernels.triton.configs import Config, Shape, configs, shared_memory  # noqa: E402

from . import render  # noqa: E402
from .cases import HSTU, Case  # noqa: E402
from .fake_cuda import DEVICES, fake_cuda, tool  # noqa: E402
from .jagged_cases import JaggedCase  # noqa: E402

pytestmark = pytest.mark.oldest_triton
TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
TENSOR_CORE = {80: "mma.sync", 90: "wgmma.mma_async", 120: "mma.sync", 121: "mma.sync"}
TENSOR_CORE |= dict.fromkeys((100, 103, 110), "tcgen05.mma")
# Bytes per thread. sm_80 and sm_12x hold the operands of a product in registers, and some go to
# local memory; on sm_90 a few addresses of "tiles" may, none in its loop.
SPILLS = {80: 256, 90: 16, 100: 0, 103: 0, 110: 0, 120: 256, 121: 256}
PLAIN = Case("plain", "silu(mul(s,0.088))", m=1024, n=1024, d=128, dv=128, h=4)
BIASED = Case(
    "biased", HSTU, m=1000, n=1000, d=64, dv=64, h=4,
    scalars=(1000,), needs="qkv0",
)  # fmt: skip
JAGGED = JaggedCase(
    "jagged", PLAIN.program, lengths_q=(512, 256), same=True, max_q=512, d=128, dv=128, h=4
)
CAUSAL = JaggedCase(
    "causal", "where(ge(q_idx,kv_idx),silu(mul(s,0.088)),0.0)", lengths_q=(512, 256), same=True,
    max_q=512, d=128, dv=128, h=4,
)  # fmt: skip
TABLES = Case(
    "tables", "a0:f[h,t]; a1:i[b,q_idx,kv_idx]; a2:f[h,t]; where(ge(q_idx,kv_idx),silu(add(add("
    "mul(s,0.088),lookup(a0,add(sub(q_idx,kv_idx),1023))),lookup(a2,a1))),0.0)",
    m=1024, n=1024, d=128, dv=128, h=4, needs="qkv02", integers=torch.uint8, places=2047,
)  # fmt: skip
MASKED = [
    Case(name, program, m=700, n=700, d=64, dv=64, h=4)
    for name, program in (
        ("window", "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),70)),sigmoid(s),0.0)"),
        ("lengths", "a0:i[b]; where(lt(kv_idx,mul(a0,30)),silu(s),0.0)"),
        ("rows", "a0:b[b,-,q_idx]; where(and(a0,ge(q_idx,kv_idx)),silu(s),0.0)"),
        ("tensor", "a0:b[q_idx,kv_idx]; where(a0,silu(s),0.0)"),
    )
]


def templates(case: Case, capability: int = 90) -> dict[str, str]:
    return case.templates(torch.bfloat16, capability=capability, choice=0)


def compiled(name: str, source: str, capability: int, tmp_path):
    """One kernel as Inductor would compile it: its own signature, warps, stages and options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if capability == 110 and TRITON < (3, 7):
        pytest.skip("ptxas of Triton 3.6 does not know sm_110")
    path = tmp_path / f"{name}.py"
    path.write_text(render.bare(source))
    namespace = {"__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    signature = eval(re.search(r"'signature': (\{.*?\})", source)[1])
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind[0] == "*"
    }
    options = {
        key: int(re.search(rf"{key}=(\d+)", source)[1]) for key in ("num_warps", "num_stages")
    }
    options["enable_fp_fusion"] = fuses(source)
    with fake_cuda(capability):
        described = ASTSource(fn=namespace[name], signature=signature, constexprs={}, attrs=aligned)
        return triton.compile(described, target=GPUTarget("cuda", capability, 32), options=options)


def fuses(source: str) -> bool | None:
    """Whether a kernel asks that products and sums be fused. None: it leaves that to Triton."""
    match = re.search(r"'enable_fp_fusion': (True|False)", source)
    return match and match[1] == "True"


def local_bytes(cubin: bytes, tmp_path) -> int:
    """Bytes of stack and local memory that a thread uses: what spills go to."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    usage = tool("cuobjdump", "-res-usage", str(path))
    return sum(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


def check_template(name: str, text: str, kind: str, shape: Shape, most: int, tmp_path) -> None:
    """The first configuration of a template for Hopper: its products are wgmma, at most so many
    bytes spill, and its shared memory is what is reckoned with."""
    kernel = compiled(name, text, 90, tmp_path)
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert local_bytes(kernel.asm["cubin"], tmp_path) <= most, "registers spill"
    best = configs(kind, shape, DEVICES[90][1], thorough=False)[0]
    assert kernel.metadata.shared <= shared_memory(kind, best, shape)


@pytest.mark.parametrize("capability", sorted(TENSOR_CORE))
@pytest.mark.parametrize(
    "case",
    [pytest.param(PLAIN, id="plain"), pytest.param(BIASED, id="biased", marks=pytest.mark.slow)],
)
def test_cubins(case: Case, capability: int, tmp_path):
    assert check(case, capability, tmp_path) == (3 if case is PLAIN else 4)


SUMS = "a0:f[b,h,q_idx]; t0=where(ge(q_idx,kv_idx),sigmoid(s),0.0); r=mul(a0,abs(t0)); t0"


@pytest.mark.parametrize("capability", [80, 90])
def test_row_sums_beside_the_output(capability: int, tmp_path):
    """With two terms of a masked tile the forward spills: without sums it does by 48 bytes. The
    backward spills by 40 bytes for sm_90 with Triton 3.6.
    """
    case = Case("sums", SUMS, m=1000, n=1000, d=128, dv=128, h=4)
    jagged = replace(CAUSAL, name="sums", program=SUMS.replace("b,h,q_idx", "q,h"))
    spills = lambda text: max(SPILLS[capability], 40) if "arg_DO" in text else 512
    assert [check(x, capability, tmp_path, spills) for x in (case, jagged)] == [3, 3]


BITS = "float(ge(random16(a0,b,h,q_idx,kv_idx),6554))"
DROPPED = f"a0:i[]; mul(mul({PLAIN.program},{BITS}),1.1111)"
SHARING = {"forward": 8, "rows": 8, "keys": 4}
# Scores that come from tensor memory lie in other threads.
SHARING_100 = {"forward": 2, "rows": 2, "keys": 1}


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 100, 120))]
)
def test_scores_share_their_random_bits(capability: int, tmp_path):
    """Eight of a tile share a call of Philox, and four of a transposed one; on sm_100 fewer. A call
    has at least ten products of 32 bits of which the high half is wanted too.
    """
    known: dict[str, int] = {}
    sharing = SHARING_100 if capability == 100 else SHARING
    for program in (PLAIN.program, DROPPED):
        case = Case("dropped", program, m=1024, n=1024, d=64, dv=64, h=4)
        for name, text in templates(case, capability).items():
            kernel, config = config_of(text)
            wide = wide_products(name, text, capability, tmp_path)
            if program is DROPPED:
                calls = config.rows * config.keys // (32 * config.warps * sharing[kernel])
                assert wide - known[kernel] < 16 * calls, (kernel, config)
            known[kernel] = wide


def wide_products(name: str, text: str, capability: int, tmp_path) -> int:
    code = machine_code(name, text, capability, tmp_path)
    return len(re.findall(r"IMAD\.(?:WIDE|HI)", code))


def machine_code(name: str, text: str, capability: int, tmp_path) -> str:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(name, text, capability, tmp_path).asm["cubin"])
    return tool("nvdisasm", "-c", str(path))


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 100, 120))]
)
def test_roundings_to_bf16_are_no_special_functions(capability: int, tmp_path):
    """A number that is rounded and widened again may take F2F, which is as slow as a tanh."""
    case = Case("rounded", "silu(bf16(mul(s,0.088)))", m=1024, n=1024, d=64, dv=64, h=4)
    for name, text in templates(case, capability).items():
        assert "F2F." not in machine_code(name, text, capability, tmp_path)


def check(case: Case, capability: int, tmp_path, spills=lambda text: None) -> int:
    """Compiles the kernels of a case: how many they are. spills: what a kernel may spill, if it is
    not what all may."""
    kernels = templates(case, capability)
    for name, text in kernels.items():
        binary = compiled(name, text, capability, tmp_path)
        assert TENSOR_CORE[capability] in binary.asm["ptx"], "no tensor core"
        assert binary.metadata.shared <= DEVICES[capability][1]
        allowed = spills(text)
        allowed = SPILLS[capability] if allowed is None else allowed
        assert local_bytes(binary.asm["cubin"], tmp_path) <= allowed, "registers spill"
    return len(kernels)


def config_of(source: str) -> tuple[str, Config]:
    """Which kernel this is, of a forward and a backward without other operands, and its tiles."""
    kernel = "forward" if "arg_DO" not in source else "keys" if "arg_OUT1" in source else "rows"
    patterns = (r"'BLOCK_M': (\d+)", r"'BLOCK_N': (\d+)", r"num_warps=(\d+)", r"num_stages=(\d+)")
    return kernel, Config(*(int(re.search(pattern, source)[1]) for pattern in patterns))


def _fitting(capability: int, dim: int):
    quick = (capability, dim) == (100, 256)
    return pytest.param(capability, dim, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize("program", [PLAIN.program, CAUSAL.program], ids=["plain", "causal"])
@pytest.mark.parametrize(
    ("capability", "dim"), [_fitting(c, d) for c in sorted(DEVICES) for d in (64, 128, 256)]
)
def test_shared_memory_is_no_more_than_thought(capability: int, dim: int, program: str, tmp_path):
    """Configurations are pruned by it. On sm_100 the first for dK and dV of head dim 256 took 256
    KiB, where 227 are."""
    case = Case("wide", program, m=1024, n=1024, d=dim, dv=dim, h=4)
    for name, text in templates(case, capability).items():
        result = compiled(name, text, capability, tmp_path).metadata.shared
        kernel, config = config_of(text)
        thought = shared_memory(kernel, config, Shape(dim, dim, 2), capability)
        assert result <= DEVICES[capability][1], (kernel, config)
        # sm_120 takes a little more for dK of head dim 256, and has room for it.
        assert result <= thought or TENSOR_CORE[capability] == "mma.sync", (kernel, config)


@pytest.mark.parametrize("case", [JAGGED, CAUSAL], ids=lambda case: case.name)
@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 100, 120))]
)
def test_jagged_cubins(case: JaggedCase, capability: int, tmp_path):
    # Triton 3.6 keeps more of a masked loop of the backward at hand; Triton 3.7 a register more
    # than there are on sm_100, and Triton 3.9 two. On sm_90 Triton 3.8 keeps four of a backward
    # without a mask. The forward has two loops.
    masked = 176 if TRITON < (3, 7) else 16 if capability == 100 else 0

    def spills(text: str) -> int | None:
        if TENSOR_CORE[capability] == "mma.sync":
            return None
        if "arg_DO" not in text:
            return 8
        return masked if case is CAUSAL else None

    assert check(case, capability, tmp_path, spills) == 3


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 100, 120))]
)
def test_tables_compile(capability: int, tmp_path):
    """Forward, rows, keys, and the sums of both tables. Only that of dK and dV spills."""
    spills = lambda text: 256 if "arg_OUT1" in text else None
    assert check(TABLES, capability, tmp_path, spills) == 5


@pytest.mark.parametrize("warps", [2, 8])
@pytest.mark.parametrize("capability", [80, 90])
def test_rows_and_columns_are_not_paired(capability: int, warps: int, tmp_path):
    """LLVM paired the bits of rows with those of columns. Triton 3.6 compiled such pairs wrongly,
    and a window of three columns was another one in all warps but the first."""
    window = (
        "a0:f[q_idx,kv_idx]; "
        "where(not(le(abs(sub(q_idx,kv_idx)),3)),0.0,hardsigmoid(maximum(div(s,9.0),a0)))"
    )
    case = Case("window", window, m=9, n=9, d=4, dv=4, b=2, h=1, needs="v",
                options="skip=False")  # fmt: skip
    kernels = templates(case, capability).items()
    name, text = next((name, text) for name, text in kernels if "arg_DO" in text)
    text = re.sub(r"num_warps=\d+", f"num_warps={warps}", text)
    made = compiled(name, text, capability, tmp_path)
    shifts = re.findall(r"shl (?:nuw |nsw )+<\d+ x i32> %\w+, <(.*?)>", made.asm["llir"])
    amounts = [int(n) for shift in shifts for n in re.findall(r"i32 (\d+)", shift)]
    assert not any(m >= 16 for m in amounts), f"a thread's number, shifted by {amounts}"


@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
def test_masked_kernels_compile(case: Case, tmp_path):
    """Ends of a loop that are blocks of one element end the compiler of Triton 3.6, and with it
    the process."""
    assert check(case, 90, tmp_path, lambda text: 1 << 16) == 3


def test_products_and_sums_are_one_instruction(tmp_path):
    """A score of silu costs a product, a fused product and sum, and a tanh. Without `fuses` the
    second is two instructions, and the whole kernel 7% longer."""
    case = Case("fused", PLAIN.program, m=1024, n=1024, d=64, dv=64, needs="")
    ((name, text),) = templates(case).items()
    assert fuses(text)
    apart = text.replace("'enable_fp_fusion': True", "'enable_fp_fusion': False")
    whole, parts = (compiled(name, x, 90, tmp_path).asm["ptx"] for x in (text, apart))
    count = whole.count("tanh.approx.f32")
    assert [whole.count(f"{op}.rn.f32") for op in ("fma", "add", "sub")] == [count, 0, 0]
    assert "fma.rn.f32" not in parts


def test_the_forward_of_hopper_compiles_lean(tmp_path):
    """One special-function operation per score, and the loop's products on wgmma."""
    case = Case("forward", PLAIN.program, m=1024, n=1024, d=128, dv=128, needs="")
    ((name, text),) = templates(case).items()
    made = compiled(name, text, 90, tmp_path)
    best = configs("forward", Shape(128, 128, 2), DEVICES[90][1], thorough=False)[0]
    assert "wgmma.mma_async" in made.asm["ptx"]
    # A thread holds rows·keys/threads scores; each is one tanh.
    assert made.asm["ptx"].count("tanh.approx.f32") == best.rows * best.keys // (32 * best.warps)
    assert local_bytes(made.asm["cubin"], tmp_path) == 0
    assert made.metadata.shared <= shared_memory("forward", best, Shape(128, 128, 2))


HALVES = JaggedCase(
    "halves", PLAIN.program, lengths_q=(300, 130), same=True, d=64, dv=64, h=2, choice=0, needs="",
    half=True,
)  # fmt: skip
AFTERWARDS = {
    "a factor for each row and head": lambda out, x: (
        out * x.flatten().narrow(0, 0, 860).view(430, 2, 1)
    ),
    "a bias of merged heads": lambda out, x: out.flatten(1) + x.narrow(0, 0, 1).narrow(1, 0, 128),
    "a part of a projection": lambda out, x: out.flatten(1) * x.narrow(1, 128, 128),
}


@pytest.mark.parametrize("after", AFTERWARDS)
def test_what_is_computed_in_half_tiles_compiles(after, tmp_path):
    """What follows the attention is written at each store of its kernel, with parts of an index
    of its own."""
    operands = [t.bfloat16() if t.is_floating_point() else t for t in HALVES.tensors()]

    def model(projection, *operands):
        return AFTERWARDS[after](HALVES.function()(*operands)[0], projection)

    projection = torch.empty(430, 512, dtype=torch.bfloat16)
    source = render.wrapper(model, [projection, *operands], decomposed=True)
    kernels = {n: k for n, k in render.kernels(source).items() if "heuristics.template" in k}
    ((name, kernel),) = kernels.items()
    assert kernel.count("tl.store(") == 2  # a whole tile's and half a tile's
    assert compiled(name, kernel, 90, tmp_path).asm["cubin"]
