"""Programs around attention, a module for each topic: what torch's semantics allow there."""

from ..rows import gather, name_of

EVERY = gather(__path__, __name__)

# test_hunts.py does not run these: it compares no complex and no 8-bit numbers and has bounds for
# one precision, eager's own gradient is of changed operands, padding is not finite
# (docs/jagged.md), or a second derivative is asked for, which stock refuses too.
ELSEWHERE = frozenset(
    """
    second_order scale_parameter_wide scale_parameter_wide_bf bias_wide_bf complex_bias
    float8_operands autocast_bf autocast_scores_only autocast_nested_off autocast_float_island
    half_square_overflow query_cast_half fb_autocast later_gate_data later_all_change_q_data
    later_fb_offsets_data fb_exp_overflow_at_padding fb_nan_bias_at_padding
""".split()
)

CASES = [entry for entry in EVERY if name_of(entry[0]) not in ELSEWHERE]
