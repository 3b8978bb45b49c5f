"""None or zeros: operands whose gradient vanishes."""

import torch
import torch.nn.functional as F

from ..rows import INF, Programs, ikv, normal, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table


table(
    ikv(),
    of=of_scores,
    prefix="given_reach_",
    cancelled=(lambda s, a: s.relu() + a - a, normal((5, 7))),
    times_zero=(lambda s, a: s.relu() + 0 * a, normal((5, 7))),
    times_zero_plus_one=(lambda s, a: s.relu() * (a * 0 + 1), normal(7)),
    floor_of=(lambda s, a: s.relu() * a.floor(), normal(7)),
    sign_of=(lambda s, a: s.relu() * a.sign(), normal(7)),
    round_of=(lambda s, a: s.relu() * a.round(), normal(7)),
    greater=(lambda s, a: s.relu() * (a > 0), normal(7)),
    greater_both=(lambda s, a: s * (s > a), normal(7)),
    detached=(lambda s, a: s.relu() * a.detach(), normal(7)),
    detached_and_not=(lambda s, a: s.relu() * a.detach() + 0 * a, normal(7)),
    as_integers=(lambda s, a: s.relu() * a.long(), normal(7)),
    isnan_of=(lambda s, a: s.relu() * ~a.isnan(), normal(7)),
    clone_zeroed=(lambda s, a: s.relu() + a.clone().zero_(), normal(7)),
    clone_filled=(lambda s, a: s.relu() + a.clone().fill_(1.5), normal(7)),
    clone_copied=(lambda s, a, b: s.relu() + a.clone().copy_(b), normal(7), normal(7)),
    ones_like=(lambda s, a: s.relu() + torch.ones_like(a), normal(7)),
    power_zero=(lambda s, a: s.relu() * a**0, normal(7)),
    clamp_flipped=(lambda s, a: s.relu() * a.clamp(1, 1), normal(7)),
    where_false=(lambda s, a: torch.where(torch.zeros(7, dtype=torch.bool), a, s), normal(7)),
    where_python_false=(lambda s, a: torch.where(torch.tensor(False), a, s.relu()), normal(7)),
    masked_all=(
        lambda s, a: s.relu() + a.masked_fill(torch.ones(7, dtype=torch.bool), 0.0),
        normal(7),
    ),
    masked_where_true_scalar=(lambda s, a: s.masked_fill(torch.tensor(True), 1.0) + a, normal(7)),
    tril_never=(lambda s, a: s.relu() + a.tril(-9), normal((5, 7))),
    scores_times_zero=(lambda s, a: s * 0 + a, normal((5, 7))),
    scores_detached_plus=(lambda s, a: s.detach().relu() + a, normal((5, 7))),
    scores_signed=(lambda s, a: s.sign() * a, normal((5, 7))),
    lerp_weight_zero=(lambda s, a: torch.lerp(s, a, 0.0), normal((5, 7))),
    addcmul_value_zero=(lambda s, a: torch.addcmul(s, a, a, value=0), normal((5, 7))),
    add_alpha_zero=(lambda s, a: torch.add(s, a, alpha=0), normal((5, 7))),
    max_minus_infinity=(lambda s, a: torch.maximum(s, a - INF), normal((5, 7))),
    nan_to_num=(lambda s, a: s.relu() + torch.nan_to_num(a * INF, 0.0, 0.0, 0.0), normal((5, 7))),
    hardtanh_same=(
        lambda s, a: s + F.hardtanh(a, -1.0, 1.0) * F.threshold(a, 9.0, 0.0),
        normal((5, 7)),
    ),
    zero_dim=(lambda s, a, b: torch.sigmoid(s * a + b) * a, normal(()), normal(1)),
    zero_dim_fp32=(lambda s, a: torch.sigmoid(s * a), normal((), dtype=torch.float32)),
    zero_dim_item_free=(lambda s, a: torch.sigmoid(s * a[0, 0] + a[0, 1]), normal((1, 2))),
    same_operand_detached_and_not=(lambda s, a: torch.sigmoid(s * a.detach() + a), normal((5, 7))),
    zeros_batch_mask=(lambda s, a: s.sigmoid() * torch.zeros_like(a), normal((5, 7))),
)
