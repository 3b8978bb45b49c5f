"""Parts of the scores that are joined again: what a slice may say."""

import torch

from ..rows import Programs, ikv, normal, nothing, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table


table(
    ikv(),
    of=of_scores,
    prefix="joined_",
    start_before_the_beginning=lambda s: torch.cat([s[:, :1].relu(), s[:, -3:1].sigmoid()], 1),
    start_before_the_beginning_both=lambda s: torch.cat(
        [s[:, -4:1].relu(), s[:, -3:1].sigmoid()], 1
    ),
    end_before_the_beginning=lambda s: torch.cat([s[:, :-1].relu(), s[:, -1:].sigmoid()], 1),
    end_past_the_end=lambda s: torch.cat([s[:, :1].relu(), s[:, 1:99].sigmoid()], 1),
    rows_start_before=lambda s: torch.cat(
        [s[:, :, :2].relu(), s[:, :, -8:3][:, :, -3:].sigmoid()], 2
    ),
    nested_same_starts=lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[0, 1].tanh()]),
            torch.stack([s[1, 0].sigmoid(), s[1, 1].exp()]),
        ]
    ),
    nested_crossed=lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[1, 0].tanh()]),
            torch.stack([s[0, 1].sigmoid(), s[1, 1].exp()]),
        ]
    ),
    nested_repeated=lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[0, 1].tanh()]),
            torch.stack([s[0, 0].sigmoid(), s[0, 1].exp()]),
        ]
    ),
    stack_moved=lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], -1).movedim(-1, 1),
    stack_with_constant=lambda s: torch.stack([s[:, 0].relu(), torch.ones_like(s[:, 1])], 1),
    cat_with_constant=lambda s: torch.cat([s[:, :1].relu(), torch.full_like(s[:, :1], 0.5)], 1),
    cat_with_empty=lambda s: torch.cat([s[:, :0], s[:, :1].relu(), s[:, 1:].tanh()], 1),
    cat_of_int_and_float=lambda s: torch.cat([s[:, :1].relu(), (s[:, 1:] > 0).long()], 1),
    hstack_=lambda s: torch.hstack([s[:, :1].relu(), s[:, 1:].tanh()]),
    chunk_three_of_seven=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh, torch.sigmoid), s.chunk(3, -1))], -1
    ),
    tensor_split=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh), s.tensor_split([3], -1))], -1
    ),
    narrow_=lambda s: torch.cat([s.narrow(1, 0, 1).relu(), s.narrow(1, -1, 1).tanh()], 1),
    select_negative=lambda s: torch.stack([s.select(1, -2).relu(), s.select(1, -1).tanh()], 1),
    position_in_part=lambda s: torch.cat(
        [s[..., :3] * torch.arange(3), s[..., 3:] * torch.arange(4)], -1
    ),
    tril_of_part=lambda s: torch.cat([s[..., :3].tril(), s[..., 3:].triu()], -1),
    tril_of_head=lambda s: torch.stack([s[:, 0].tril(), s[:, 1].triu(2)], 1),
    select_of_parts=lambda s: (
        torch.cat([s[:, :, :, :3].relu(), s[:, :, :, 3:].relu()], -1)
        .select(1, 0)[:, None]
        .expand(-1, 2, -1, -1)
    ),
)


table(
    nothing,
    of=of_scores,
    prefix="joined_",
    columns_start_before=(
        lambda s: torch.cat([s[..., :4].relu(), s[..., -12:4].sigmoid()], -1),
        ikv(m=8),
    ),
    columns_start_before_second=(
        lambda s: torch.cat([s[..., -12:4].relu(), s[..., 4:].sigmoid()], -1),
        ikv(m=8),
    ),
    rows_halves_before=(
        lambda s: torch.cat([s[..., :2, :].relu(), s[..., -6:2, :].sigmoid()], -2),
        ikv(n=4),
    ),
    half_of_rows_gated_by_other_half=(
        lambda s: torch.cat([s[..., :2, :] * s[..., 2:, :].sigmoid(), s[..., 2:, :]], -2),
        ikv(n=4),
    ),
)


table(
    ikv(),
    of=of_scores,
    prefix="given_joined_",
    bias_per_part=(lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(), normal(2)),
    bias_per_part_swapped=(
        lambda s, a: torch.cat([s[:, :1] + a[1], s[:, 1:] + a[0]], 1).relu(),
        normal(2),
    ),
    bias_same_for_all_parts=(
        lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[0]], 1).relu(),
        normal(2),
    ),
    bias_first_of_three=(
        lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(),
        normal(3),
    ),
    bias_whole_in_each_part=(
        lambda s, a: torch.cat([s[:, :1] + a, s[:, 1:] - a], 1).relu(),
        normal((5, 7)),
    ),
    bias_of_batch_in_head_part=(
        lambda s, a: torch.stack([s[:, 0] + a[:, None, None], s[:, 1] + a[0]], 1).relu(),
        normal(2),
    ),
)
