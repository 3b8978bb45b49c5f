"""Programs around attention, a module for each topic: what each operator may mean there."""

from ..rows import gather, name_of

EVERY = gather(__path__, __name__)
# These found faults.
MENDED = frozenset(
    """
    whole_two_scales_meet_a_threshold whole_two_scales_in_place whole_two_scales_floor
    whole_two_scales_clamp_gradient whole_three_scales joined_start_before_the_beginning
    joined_start_before_the_beginning_both joined_rows_start_before joined_columns_start_before
    caller_steps_query_behind_dropout caller_steps_query_behind_dropout_eval
    factory_that_is_returned_wants_gradient
""".split()
)

CASES = [entry for entry in EVERY if name_of(entry[0]) in MENDED]
MORE = [entry for entry in EVERY if name_of(entry[0]) not in MENDED]
