"""PTX text -> Kernel: parameters, register classes, and instructions in basic blocks."""

import re
from dataclasses import dataclass, field

WIDTH = {
    "pred": 1,
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "bf16": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
}


@dataclass
class Instr:
    op: str  # full opcode with its modifiers, e.g. "add.s32"
    args: list  # operand texts, split at top-level commas
    pred: str | None  # guard predicate register, or None
    neg: bool  # True for @!p
    line: int  # line in the PTX text


@dataclass
class Kernel:
    name: str
    params: list = field(default_factory=list)  # (name, size, align)
    regs: dict = field(default_factory=dict)  # python identifier -> width in bits (1 = predicate)
    blocks: list = field(default_factory=list)  # list of list[Instr]
    labels: dict = field(default_factory=dict)  # label -> block index
    shared: dict = field(default_factory=dict)  # shared symbol -> byte address
    reqntid: tuple = (0, 1, 1)


def ident(name):
    return name.lstrip("%").replace("$", "_").replace(".", "_")


def split_args(text):
    out, depth, cur = [], 0, ""
    for ch in text:
        depth += (ch in "{[(") - (ch in "}])")
        if ch == "," and depth == 0:
            out.append(cur.strip())
            cur = ""
        else:
            cur += ch
    return out + ([cur.strip()] if cur.strip() else [])


def statements(body):
    """Yield (statement, line) with '{' and '}' of nested scopes as statements of their own."""
    cur, line, start, depth = "", 1, 1, 0
    for ch in body:
        if ch == "\n":
            line += 1
        if not cur.strip() and ch in "{}":
            yield ch, line
            cur = ""
        elif ch == ";":
            yield cur.strip(), start
            cur = ""
        elif ch == ":" and re.fullmatch(r"\s*[$\w]+", cur):
            yield cur.strip() + ":", line
            cur = ""
        else:
            if not cur.strip():
                start = line
            cur += ch


def parse(text, dynamic_smem_base=1024):
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    kernels = {}
    for m in re.finditer(r"\.entry\s+([$\w]+)\s*\((.*?)\)\s*(.*?)\{", text, flags=re.S):
        k = Kernel(m.group(1))
        for p in split_args(m.group(2)):
            pm = re.match(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([$\w]+)(?:\[(\d+)\])?", p)
            elem = WIDTH[pm.group(2)] // 8
            k.params.append((pm.group(3), elem * int(pm.group(4) or 1), int(pm.group(1) or elem)))
        if rm := re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", m.group(3)):
            k.reqntid = tuple(int(x or 1) for x in rm.groups())
        for sm in re.finditer(r"\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+([$\w]+)\[\]", text):
            k.shared[sm.group(1)] = dynamic_smem_base
        depth, end = 1, m.end()
        while depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        parse_body(k, text[m.end() : end - 1], text.count("\n", 0, m.end()))
        kernels[k.name] = k
    return kernels


def parse_body(k, body, first_line):
    scopes, nscopes, pending = [{}], 0, []
    block = []
    k.blocks.append(block)
    flat = []
    for st, line in statements(body):
        if st == "{":
            nscopes += 1
            scopes.append({"#": nscopes})
            continue
        if st == "}":
            scopes.pop()
            continue
        flat.append((st, line + first_line, list(scopes)))
        if m := re.match(r"\.reg\s+\.(\w+)\s+(.*)", st):
            for n in split_args(m.group(2)):
                if g := re.fullmatch(r"(%[A-Za-z_]+)<(\d+)>", n):
                    for i in range(int(g.group(2))):
                        k.regs[ident(g.group(1)) + str(i)] = WIDTH[m.group(1)]
                else:
                    new = n if len(scopes) == 1 else f"{n}__s{scopes[-1]['#']}"
                    scopes[-1][n] = new
                    k.regs[ident(new)] = WIDTH[m.group(1)]
        elif st.endswith(":") and len(scopes) > 1:
            scopes[-1][st[:-1]] = f"{st[:-1]}__s{scopes[-1]['#']}"
    for st, line, scope in flat:
        if st.startswith(".reg") or st.startswith(".pragma") or st.startswith(".loc"):
            continue
        names = {}
        for s in scope:
            names.update(s)
        names.pop("#", None)
        if names:
            st = re.sub(r"[$%\w]+", lambda m: names.get(m.group(), m.group()), st)
        if st.endswith(":"):
            if block:
                block = []
                k.blocks.append(block)
            k.labels[st[:-1]] = len(k.blocks) - 1
            continue
        m = re.match(r"(?:@(!?)([%\w]+)\s+)?([\w.:]+)\s*(.*)", st, flags=re.S)
        ins = Instr(
            m.group(3),
            split_args(m.group(4)),
            m.group(2) and ident(m.group(2)),
            m.group(1) == "!",
            line,
        )
        block.append(ins)
        if ins.op.split(".")[0] in ("bra", "ret", "exit"):
            block = []
            k.blocks.append(block)
