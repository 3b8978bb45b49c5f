"""Programs around attention, a module for each topic: what each operator may mean there."""

from ..rows import gather, name_of

EVERY = gather(__path__, __name__)

# Eager refuses them: a write that its own backward notices, or no derivative.
REFUSED_BY_EAGER = frozenset(
    """
    _CountAfter _CountAfterAll act_floordiv_op act_heaviside_ all_complex all_sizes_equal
    caller_zeroes_what_needs_no_gradient_0001 caller_zeroes_what_needs_no_gradient_0100
    caller_zeroes_what_needs_no_gradient_0101 caller_zeroes_what_needs_no_gradient_0110
    caller_zeroes_what_needs_no_gradient_0111 caller_zeroes_what_needs_no_gradient_1000
    caller_zeroes_what_needs_no_gradient_1001 caller_zeroes_what_needs_no_gradient_1010
    caller_zeroes_what_needs_no_gradient_1011 caller_zeroes_what_needs_no_gradient_1100
    caller_zeroes_what_needs_no_gradient_1101 checkpoint_then_bias_written
    detach_in_place_of_scores given_joined_bias_slice_before_beginning kv_cache_step
    mask_full_like_fp16_overflow no_grad_all_then_write output_added_to_its_query
    table_table_written_after twin_after_write value_cache_is_written
    whole_overflow_bfloat16 whole_overflow_float16 whole_scores_past_256_bfloat16
    whole_scores_past_256_float16 write_22 write_23 write_39 write_40 write_44 write_45
    write_46 write_48
""".split()
)

# Writes by the caller through `.data` into what eager's own backward reads: its gradient is that of
# no function (docs/numerics.md).
UNSEEN_BY_AUTOGRAD = frozenset(["caller_scales_data", "jagged_caller_changes_offsets_data"])

# Eager answers both ways within one tensor: the slope of elu at NaN is NaN in its vectors, and 1 in
# the elements past the last whole vector.
TWO_ANSWERS = frozenset(["given_elu_of_nan_masked"])

# What differed when it was found and is mended.
MENDED = frozenset(
    """
    whole_two_scales_meet_a_threshold whole_two_scales_in_place whole_two_scales_floor
    whole_two_scales_clamp_gradient whole_three_scales joined_start_before_the_beginning
    joined_start_before_the_beginning_both joined_rows_start_before joined_columns_start_before
    caller_steps_query_behind_dropout caller_steps_query_behind_dropout_eval
    factory_that_is_returned_wants_gradient
""".split()
)

LEFT_OUT = REFUSED_BY_EAGER | UNSEEN_BY_AUTOGRAD | TWO_ANSWERS
CASES = [entry for entry in EVERY if name_of(entry[0]) in MENDED]
MORE = [entry for entry in EVERY if name_of(entry[0]) not in LEFT_OUT | MENDED]
