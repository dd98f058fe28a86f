"""Plants known faults in a copy of the package, one at a time, and says whether the tests notice.

A suite is only as good as the faults that it catches. Each entry of `FAULTS` is a single small change that would make
training wrong, and the tests that must fail on it. `python tools/planted_faults.py` plants them all, in some minutes
on one core; words behind it pick the faults whose names hold one of them. It exits with 1 where a fault survives, or
where its text is no longer in the code: then bring the entry up to date.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parent.parent

HF = "plugins/grpokit-hf/src/grpokit_hf/"
HF_TESTS = "plugins/grpokit-hf/tests/"
PHASE_FROZEN = "tests/phases/test_phased_trainer.py::test_what_others_train_has_no_gradient_while_a_phase_lasts"
PHASE_VERSIONS = "tests/phases/test_phased_trainer.py::test_a_policy_of_two_phases_is_told_of_every_change"
PHASE_RESUME = "tests/phases/test_phased_trainer.py::test_a_resume_is_exact_at_every_step[3]"
PHASE_RUN = "tests/phases/test_runs.py::test_a_run_has_one_folder"
HALVES_AVERAGE = "plugins/grpokit-glm-image/tests/test_halves.py::test_evaluations_paint_with_the_average"
BY_HAND = "tests/test_run_by_hand.py::test_a_run_equals_one_written_by_hand"
BLOCKS = f"{HF_TESTS}cpu/test_causal_blocks.py::test_values_and_gradients_are_those_of_the_table"
WRITTEN = f"{HF_TESTS}tokens/test_group_decoding.py::test_tokens_and_logprobs_are_those_of_the_model"
ONE_PASS = f"{HF_TESTS}tokens/test_packed_attention.py::test_one_packed_pass_equals_a_pass_for_each_sequence"
THREE_AXES = f"{HF_TESTS}tokens/test_packing.py::test_three_axes_and_forbidden_tokens"
JOINT = f"{HF_TESTS}tokens/test_joint_layers.py::test_hidden_states_stay"
JOINT_CALLS = f"{HF_TESTS}tokens/test_joint_layers.py::test_a_layer_needs_four_products"
MERGED = f"{HF_TESTS}tokens/test_linear_layers.py::test_merged_adapters_give_the_same_logits"
FIRST_STEPS = f"{HF_TESTS}tokens/test_linear_layers.py::test_what_an_adapter_learns_first_is_not_rounded_away"
LEAN = f"{HF_TESTS}tokens/test_lean_layers.py::test_values_and_gradients_of_a_model_stay"
HEAD = f"{HF_TESTS}tokens/test_fused_head.py::test_equals_the_dense_computation"
TRUNCATED = f"{HF_TESTS}tokens/test_drawing.py::test_log_probs_and_entropy_are_of_the_truncated_distribution"
BY_HAND_TRUNCATION = f"{HF_TESTS}tokens/test_drawing.py::test_truncation_by_hand"
SEEDS = "tests/test_sampling.py::test_no_seed_is_used_twice"
STREAMS = "tests/test_sampling.py::test_a_run_its_evaluation_and_samples_share_no_seed"
EDGES = "tests/test_sampling.py::test_draws_at_the_edges_stay_among_the_tokens_that_can_be_drawn"
RARE = "tests/test_sampling.py::test_a_rare_token_keeps_its_probability"
FREQUENCIES = "tests/test_sampling.py::test_frequencies_are_the_probabilities"
BF16 = "tests/test_trainer.py::test_bf16_uses_the_training_forwards_own_log_probs"
FROZEN = "tests/test_trainer.py::test_a_frozen_base_in_bf16_counts_as_low_precision"
DIFFERENCE = "tests/test_trainer.py::test_a_sampler_that_disagrees_shows_in_the_gap"
PASSES = "tests/test_trainer.py::test_every_pass_and_step_has_minibatches_of_its_own"
ADVANTAGE = "tests/test_trainer.py::test_the_advantage_function_gets_rewards_with_their_weights_and_no_monitor"
FIXED = "tests/test_trainer.py::test_a_fixed_length_is_the_policys_and_not_the_rollouts"
ADDITIVITY = "tests/test_trainer.py::test_micro_batches_and_slices_add_up[gspo-dtype0-1e-12]"
PROMPTS = "tests/test_trainer.py::test_rewards_meet_their_own_samples_and_groups"
TRACKERS = "tests/test_trainer.py::test_tensorboard_gets_the_metrics"
AGAIN = "tests/training/test_guards.py::test_a_step_that_is_taken_again_counts_once"
ROW_NUMBER = "tests/training/test_guards.py::test_a_loss_that_is_no_number_names_step_row_and_prompt"
SAPO = "tests/test_objectives.py::test_sapo_by_hand_in_fp64"
DEFAULTS = "tests/test_objectives.py::test_published_defaults"
CHECK = "plugins/grpokit-check/src/grpokit_check/"
CHECK_TESTS = "plugins/grpokit-check/tests/"
SCAFFOLD_CI = (
    f"{CHECK_TESTS}test_write.py::"
    "test_its_workflows_try_the_oldest_and_the_newest_grpokit_and_publish_without_a_token[reward]"
)
KEYWORDS = "tests/test_objectives.py::test_every_keyword_of_an_objective_changes_its_loss"
WEIGHTS = "tests/test_advantages.py::test_weights_multiply_rewards"
TO_GO = "tests/test_advantages.py::test_returns_to_go_by_hand"
MERGED_REWARDS = "tests/training/test_dynamic_sampling.py::test_the_rewards_of_decisions_go_with_their_groups"
GDPO = "tests/test_advantages.py::test_gdpo_weighs_z_scores_and_divides_by_the_spread_of_the_batch"
CLIP = "tests/test_advantages.py::test_clip"
BIASED = "tests/test_advantages.py::test_biased_std"
EQUAL = "tests/test_advantages.py::test_equal_sums_are_equal_however_they_are_rounded"
FP64 = "tests/test_advantages.py::test_the_arithmetic_is_fp64_whatever_the_rewards_are"
UNSCORED = "tests/test_advantages.py::test_a_reward_that_scored_no_row_changes_nothing"
SINGLE = "tests/test_advantages.py::test_a_single_score_teaches_nothing"
GOLDEN = "tests/test_objectives.py::test_golden"
NFT = "tests/test_objectives.py::test_nft_by_hand"
COPY = "tests/test_flow.py::test_the_score_of_a_copy_by_hand"
DPPO = "tests/test_objectives.py::test_dppo_drops_tokens_that_move_on_where_they_have_moved_far"
STEP_WEIGHTS = (
    "plugins/grpokit-hf/tests/diffusion/test_flow_policy.py::test_a_weight_multiplies_the_gradient_of_the_policy_loss"
)
VESPO = "tests/test_objectives.py::test_vespo_by_hand"
KL_HAND = "tests/test_objectives.py::test_a_bias_corrected_kl_by_hand"
KL_TRUE = "tests/test_objectives.py::test_the_gradient_of_a_bias_corrected_kl_is_the_true_one"
GUARD = "tests/test_objectives.py::test_guarded_ratio_by_hand"
GUARD_DRIFT = "tests/test_objectives.py::test_the_guarded_ratio_stays_at_1_where_the_plain_one_drifts"
GUARD_OLD = "tests/training/test_gradient.py::test_a_guarded_ratio_has_the_old_means"
GUARD_FLOW = f"{HF_TESTS}diffusion/test_flow_policy.py::test_training_with_a_guarded_ratio_and_a_penalty_on_velocities"
VELOCITY_KL = "tests/test_objectives.py::test_velocity_kl_by_hand"
REFERENCE_ONCE = "tests/training/test_gradient.py::test_the_references_moments_are_found_once_for_a_rollout"
OFF_POLICY = "tests/test_objectives.py::test_off_policy_mask_by_hand"
REDUCTIONS = "tests/test_objectives.py::test_reductions_by_hand"
ADDITIVITY_VESPO = "tests/test_trainer.py::test_micro_batches_and_slices_add_up[vespo-dtype0-1e-12]"
TOP = "tests/builtin/test_entropy_filter.py::test_the_kept_decisions_by_hand"
TIES = "tests/builtin/test_entropy_filter.py::test_equal_entropies_stay_together_in_spite_of_rounding"
TOP_GRADIENT = "tests/builtin/test_entropy_filter.py::test_the_gradient_is_one_written_by_hand"
LEFT_OUT = "tests/training/test_modifier.py::test_rows_of_weight_0_are_as_if_never_drawn"
COEFFICIENT = "tests/builtin/test_entropy_target.py::test_the_coefficient_by_hand"
COEFFICIENT_RESUMED = "tests/builtin/test_entropy_target.py::test_a_resumed_run_has_the_same_coefficients"
COEFFICIENT_FAILED = "tests/builtin/test_entropy_target.py::test_a_failed_step_changes_no_coefficient"
BONUS = "tests/builtin/test_entropy_target.py::test_the_bonus_keeps_the_entropy_up"
REPLACED = "tests/training/test_dynamic_sampling.py::test_groups_without_spread_are_replaced_in_their_places"
BOUNDED = "tests/training/test_dynamic_sampling.py::test_the_attempts_are_bounded"
UNSCORED_GROUP = "tests/training/test_dynamic_sampling.py::test_a_group_that_no_reward_could_score_is_drawn_anew"
FIRST_DRAW = "tests/training/test_dynamic_sampling.py::test_the_first_draw_is_that_of_a_run_without_it"
FURTHER = "tests/training/test_dynamic_sampling.py::test_further_prompts_are_new_as_long_as_there_are_any"
ANSWERS = "tests/rewards/test_worker_pool.py::test_an_answer_to_another_request_or_of_another_process_is_dropped"
FORKS = "tests/processes/test_forks.py::test_the_copy_ends"
HTTP = "plugins/grpokit-http/src/grpokit_http/"
HTTP_TESTS = "plugins/grpokit-http/tests/"
ONE_REQUEST = f"{HTTP_TESTS}test_service.py::test_an_answer_ends_its_connection"
STRANGERS = f"{HTTP_TESTS}test_service.py::test_a_client_is_answered_while_strangers_hold_all_connections"
CHUNKS = f"{HTTP_TESTS}test_service.py::test_a_flood_of_chunks_keeps_no_client_waiting"
TWICE = f"{HTTP_TESTS}test_service.py::test_a_request_in_which_a_key_appears_twice_is_refused"
ANOTHER_SERVICE = f"{HTTP_TESTS}test_client.py::test_a_service_that_is_another_is_named"
UNPACKED = f"{HTTP_TESTS}test_service.py::test_too_many_pixels_are_refused_before_any_are_unpacked"
MANY_VALUES = f"{HTTP_TESTS}test_service.py::test_a_request_with_too_many_values_is_refused_unread"
DRIPS = f"{HTTP_TESTS}test_client.py::test_a_drip_of_bytes_does_not_outlast_the_timeout"
FULL_DISK = "tests/cli/test_display.py::test_a_full_disk_behind_the_output_is_told_once"
OWN_FOLDER = "tests/cli/test_evaluations.py::test_an_evaluation_replaces_itself_and_nothing_else"
NO_CHECKPOINTS = "tests/runs/test_changed_prompts.py::test_a_finished_run_without_checkpoints_is_not_begun_again"
REPEATED_KEY = "tests/test_data.py::test_bad_line"
LINKS = "tests/report/test_report.py::test_a_link_among_the_files_of_a_run_is_refused"
WORLDS = "plugins/grpokit-lm/tests/test_worlds.py::test_"
EVEN = "tests/guards/test_hacking.py::test_alarm_on_held_out_prompts"
FALLEN = "tests/report/test_scores.py::test_the_verdict_names_a_monitor_that_fell"
SCALES = "tests/report/test_report.py::test_scores_on_two_scales_are_not_compared"
NOT_COUNTED = "tests/training/test_guards.py::test_rows_of_unscorable_prompts_and_of_exceptions_do_not_count"
WORKERS = "tests/training/test_guards.py::test_a_reward_that_takes_most_of_a_step_gets_one_hint_at_workers"
ELSEWHERE = "tests/training/test_guards.py::test_a_reward_that_scores_elsewhere_gets_no_hint"
GOT_WORSE = "tests/report/test_scores.py::test_the_verdict_on_a_reward_that_got_worse"
MUTE = "tests/test_trainer.py::test_a_first_step_in_which_a_reward_scores_nothing_stops"
PATIENT = "tests/training/test_checkpoint.py::test_a_run_ends_when_its_score_has_stopped_rising"
SKIPPED = "tests/test_trainer.py::test_a_reward_whose_failures_may_be_skipped_is_not_mute"
ANOTHER_BEST = "tests/runs/test_rollout_record.py::test_another_best_by_hand"
OVERLONG = "tests/rewards/test_scoring.py::test_soft_overlong_by_the_equation"
REPETITION = "tests/rewards/test_scoring.py::test_repetition_penalty"
OCR = "plugins/grpokit-ocr/src/grpokit_ocr/"
BELOW = "plugins/grpokit-ocr/tests/test_scoring.py::test_words_below_each_other_are_words"
JUDGE = "plugins/grpokit-judge/src/grpokit_judge/"
JUDGE_TESTS = "plugins/grpokit-judge/tests/"
UNANSWERED = f"{JUDGE_TESTS}test_checklist.py::test_what_cannot_be_scored"
ASKED_AGAIN = f"{JUDGE_TESTS}test_reward.py::test_a_judge_that_draws_its_answers_is_asked_again"
PAUSE = f"{JUDGE_TESTS}test_reward.py::test_a_pause_is_not_made_up_for"
SHARDS = "tests/test_layouts.py::test_shards_are_read_in_the_order_of_their_names"
PROFILES = "tests/test_data.py::test_pictures_have_the_colours_of_their_profile[png-RGB]"
NOTATIONS = "tests/rewards/test_numerals.py::test_what_a_number_is"
GROUNDING = "plugins/grpokit-grounding/src/grpokit_grounding/"
CROPS = "plugins/grpokit-grounding/tests/test_crop_match.py::test_crops_by_hand"
PLAN = "plugins/grpokit-plan/"
PLANNED_PASSES = f"{PLAN}tests/test_estimate.py::test_passes_by_hand"
ZERO_STD = "tests/test_advantages.py::test_groups_that_teach_nothing_are_those_whose_weighted_sums_are_equal"
SMALL = "tests/test_advantages.py::test_a_small_difference_between_large_rewards_still_teaches"
CORRECTION = "tests/training/test_correction.py::test_"

MERGING = f"{CORRECTION}one_part_that_is_older_or_not_exact_makes_the_whole_so"
OLDER = f"{CORRECTION}a_rollout_of_older_weights_is_weighted_and_not_taken_for_a_fault"
SHARED_NAME = "tests/training/test_checkpoint.py::test_a_shared_parameter_has_one_name_in_any_order"
SEED_PLACES = "tests/training/test_dynamic_sampling.py::test_places_have_the_seeds_of_their_groups"
SCALE = f"{HF_TESTS}models/test_adapters.py::test_the_scale_is_alpha_by_the_rank_or_its_root"

LM = "plugins/grpokit-lm/src/grpokit_lm/"
LM_TESTS = "plugins/grpokit-lm/tests/"
BOTH_PATHS = f"{LM_TESTS}test_policy.py::test_both_paths_write_and_score_alike"
CONVERSATION = f"{LM_TESTS}test_worlds.py::test_a_row_is_the_conversation_as_the_template_writes_it"
WHOLE_CONVERSATION = (
    f"{LM_TESTS}test_worlds.py::test_logprobs_are_those_of_a_plain_forward_over_the_conversation[llama-True-plain]"
)
OF_A_WORLD = f"{LM_TESTS}test_worlds.py::test_no_gradient_comes_from_the_tokens_of_a_world"
PLAINLY = f"{LM_TESTS}test_sampler.py::test_truncated_draws_keep_their_exact_log_probs"
EVALUATED = f"{LM_TESTS}test_sampler.py::test_evaluation_draws_from_its_own_part_of_the_distribution"
DORA = f"{LM_TESTS}test_dora.py::test_a_norm_is_computed_once_per_rollout"
ENGINE_LOADED = f"{LM_TESTS}test_engine.py::test_weights_that_were_loaded_reach_the_engine"
ENGINE_SCORES = f"{LM_TESTS}test_engine.py::test_a_rollout_is_the_engine_s_and_scores_as_it_says"
MARKED = f"{LM_TESTS}tasks/test_final_answer.py::test_scores_by_hand"
TOY_SCORES = "plugins/grpokit-toy/tests/test_lm.py::test_logprobs_are_the_sampled_ones[True]"
DIVERSITY = "tests/builtin/test_diversity.py::test_positive_advantages_count_by_diversity"
KONTEXT = (
    "plugins/grpokit-diffusers/tests/test_families.py::test_a_source_is_looked_at_for_each_size[tiny-flux-kontext]"
)

GYM = "plugins/grpokit-gym/src/grpokit_gym/"
GYM_TESTS = "plugins/grpokit-gym/tests/"
BRANCHES = f"{GYM_TESTS}test_policy.py::test_branches_part_from_a_copied_state"
BUILT_WITH = f"{GYM_TESTS}test_policy.py::test_the_reference_is_what_the_policy_was_built_with"
GREEDY = f"{GYM_TESTS}test_policy.py::test_evaluations_take_the_most_likely_action"
PLAYED = f"{GYM_TESTS}test_policy.py::test_stored_actions_play_the_same_episodes_in_gymnasium[CartPole-v1]"
GYM_ANSWERS = f"{GYM_TESTS}test_policy.py::test_an_answer_that_is_none_is_named"
REFUSED_INPUT = "tests/cli/test_bad_input.py::test_bad_input"
GYM_APART = f"{GYM_TESTS}test_policy.py::test_an_answer_of_another_process_is_held_to_the_same"
AT_THE_LIMIT = f"{GYM_TESTS}test_policy.py::test_an_end_at_the_limit_is_no_cut"
GAUSSIAN_ENTROPY = f"{GYM_TESTS}test_actor.py::test_the_entropy_of_gaussian_actions_is_per_dimension"
CUT_AT_TEN = f"{GYM_TESTS}test_actor.py::test_observations_are_normalised_and_cut_at_ten_deviations"

GLM = "plugins/grpokit-glm-image/src/grpokit_glm_image/"
GLM_TESTS = "plugins/grpokit-glm-image/tests/"
REMEMBERED = f"{GLM_TESTS}test_edits.py::test_gradients_flow_through_what_is_remembered_of_sources"
STOCK = f"{GLM_TESTS}test_policy.py::test_log_probs_are_those_of_the_stock_model_while_it_samples"
PLACES = f"{GLM_TESTS}test_grids.py::test_a_text_and_its_picture_stand_where_the_model_puts_them"
SOURCES = f"{GLM_TESTS}test_grids.py::test_source_pictures_stand_where_the_model_puts_them"
PARTS = f"{GLM_TESTS}test_policy.py::test_only_the_tokens_that_train_are_decisions"
CODES = f"{GLM_TESTS}test_policy.py::test_a_rollout_knows_no_token_but_codes"
FLOW_TESTS = f"{HF_TESTS}diffusion/test_flow_policy.py::"
FLOW_CONTRACT = f"{FLOW_TESTS}test_contract"
FLOW_SHARED = f"{FLOW_TESTS}test_what_comes_before_the_window_is_computed_once_for_a_group"
FLOW_COPY = f"{FLOW_TESTS}test_a_copy_is_scored_by_its_velocity"
FLOW_SCALE = f"{FLOW_TESTS}test_the_scale_of_an_adapter_is_alpha_by_the_rank"
FLOW_AVERAGE = f"{FLOW_TESTS}test_evaluations_draw_with_the_average"
EXPORTED = f"{GLM_TESTS}test_dit.py::test_a_stock_pipeline_draws_what_the_policy_draws"
HALVES = f"{GLM_TESTS}test_dit.py::test_both_halves_share_a_model"
CONTINUED = f"{GLM_TESTS}test_saving.py::test_an_exported_adapter_trains_on"
MADE_AGAIN = f"{GLM_TESTS}test_policy.py::test_pictures_are_made_again_with_the_noise_of_their_own_group"
GLM_EVALUATED = f"{GLM_TESTS}test_policy.py::test_the_large_grids_of_a_group_share_a_draft_where_they_alone_train"
PAINTED = f"{GLM_TESTS}test_decoder.py::test_pictures_are_those_of_the_stock_pipeline"


@dataclass(frozen=True)
class Fault:
    """One wrong change.

    Attributes:
        name: what is wrong, in words.
        file: inside the package; or a plugin's, from "plugins/" on.
        old: the right code; it stands in the file exactly once.
        new: the wrong code.
        tests: ids for pytest, of which each must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    # --- the conformance checks themselves
    Fault(
        "check of an objective: the sign is not looked at",
        f"{CHECK}objectives.py",
        "expect(rise * advantage >= 0,",
        "expect(rise * advantage >= -1e9,",
        (f"{CHECK_TESTS}test_objectives.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of an objective: what stands under the mask is clean",
        f"{CHECK}objectives.py",
        "x[~mask] = torch.nan",
        "x[~mask] = 0.0",
        (f"{CHECK_TESTS}test_objectives.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of an objective: slices are not added up",
        f"{CHECK}objectives.py",
        "if not case.objective.whole_sequence:",
        "if case.objective.whole_sequence:",
        (f"{CHECK_TESTS}test_objectives.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of an advantage: rows stay in order",
        f"{CHECK}advantages.py",
        "torch.tensor([5, 0, 7, 3, 1, 8, 6, 2, 4])",
        "torch.arange(9)",
        (f"{CHECK_TESTS}test_advantages.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of an advantage: other groups stay as they are",
        f"{CHECK}advantages.py",
        "torch.where(mine[:, None], batch.rewards, change(batch.rewards))",
        "batch.rewards",
        (f"{CHECK_TESTS}test_advantages.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of a world: no other episode begins",
        f"{CHECK}worlds.py",
        "        after_start()\n",
        "",
        (f"{CHECK_TESTS}test_world_checks.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of an observer: a saved state that goes on growing",
        f"{CHECK}states.py",
        "dict(copy.deepcopy(part.state_dict()))",
        "dict(part.state_dict())",
        (f"{CHECK_TESTS}test_observers.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of a modifier: every process has all rows",
        f"{CHECK}modifiers.py",
        "rollout=rollout, rows=",
        "rows=",
        (f"{CHECK_TESTS}test_modifiers.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of a modifier: every process has the whole minibatch",
        f"{CHECK}modifiers.py",
        "parts = [batch.select(share) for share in shares]",
        "parts = [batch for share in shares]",
        (f"{CHECK_TESTS}test_modifiers.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "check of a modifier: attributes that act late are not compared",
        f"{CHECK}modifiers.py",
        "if isinstance(ended[name], _PLAIN):",
        "if isinstance(ended[name], ()):",
        (f"{CHECK_TESTS}test_modifiers.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "a policy loss of another shape is broadcast",
        "objectives.py",
        "if tuple(values.shape) != expected:",
        "if values.ndim > 2:",
        ("tests/test_objectives.py::test_a_policy_loss_that_would_be_broadcast_is_refused",),
    ),
    Fault(
        "zero-std groups are counted behind the modifiers",
        "training/step.py",
        '"frac_reward_zero_std": float(self.zero_std.double().mean())',
        '"frac_reward_zero_std": float((self.advantages == 0).double().mean())',
        ("tests/training/test_modifier.py::test_advantages_that_a_modifier_takes_away_are_no_equal_rewards",),
    ),
    Fault(
        "a state that no checkpoint can hold is found when it is saved",
        "training/state.py",
        "split(name, part)  # better",
        "pass  # better",
        ("tests/training/test_modifier.py::test_a_state_that_no_checkpoint_can_hold_is_refused",),
    ),
    # --- rows
    Fault(
        "advantages of other rows in a minibatch",
        "training/minibatches.py",
        "signal.advantages[own]",
        "signal.advantages[: len(own)]",
        (BY_HAND,),
    ),
    Fault(
        "old log-probs of other rows in a minibatch",
        "training/minibatches.py",
        "known.old.select(index)",
        "known.old.select(slice(0, len(index)))",
        (BY_HAND,),
    ),
    Fault(
        "reference of other rows in a minibatch",
        "training/minibatches.py",
        "known.reference.select(index)",
        "known.reference.select(slice(0, len(index)))",
        (BY_HAND,),
    ),
    Fault(
        "a bad row is numbered inside its minibatch",
        "guards/gradients.py",
        "logprobs, batch.numbers)",
        "logprobs)",
        (ROW_NUMBER,),
    ),
    Fault(
        "prompts reported in another order",
        "training/step.py",
        "prompts=self.prompts,\n",
        "prompts=self.prompts[::-1],\n",
        (PROMPTS,),
    ),
    # --- old log-probs
    Fault(
        "a ratio of 1 in every update",
        "training/logprob_passes.py",
        "rollout.old if exact else None",
        "None",
        (BY_HAND,),
    ),
    Fault(
        "a ratio of 1 in every update in low precision",
        "training/logprob_passes.py",
        "needs_old = not exact and (",
        "needs_old = False and (",
        (BF16,),
    ),
    Fault(
        "a frozen base in bf16 taken for fp32",
        "training/devices.py",
        "any(is_low_precision(p.dtype)",
        "all(is_low_precision(p.dtype)",
        (FROZEN,),
    ),
    Fault(
        "the sampler held against weights that were updated",
        "trainer.py",
        "before_updates=self.version == version",
        "before_updates=True",
        (BY_HAND,),
    ),
    # --- seeds
    Fault(
        "row seeds without the step",
        "sampling.py",
        "mix(seed, s, step, p, i, *again)",
        "mix(seed, s, 0, p, i)",
        (
            SEEDS,
            STREAMS,
        ),
    ),
    Fault(
        "group seeds without the step",
        "sampling.py",
        "mix(seed, s, step, p, -1, *again)",
        "mix(seed, s, 0, p, -1)",
        (
            SEEDS,
            STREAMS,
        ),
    ),
    Fault("a group's seed is its first row's", "sampling.py", "step, p, -1, *again)", "step, p, 0, *again)", (SEEDS,)),
    Fault(
        "prompts share their rows' seeds",
        "sampling.py",
        "mix(seed, s, step, p, i, *again)",
        "mix(seed, s, step, i)",
        (SEEDS,),
    ),
    Fault(
        "seeds without the run's seed",
        "sampling.py",
        "mix(seed, s, step, p, i, *again)",
        "mix(s, step, p, i)",
        (SEEDS,),
    ),
    Fault("the trainer draws step 0 for ever", "training/rollouts.py", "step=completed,", "step=0,", (STREAMS,)),
    Fault(
        "one stream for all uses",
        "sampling.py",
        '"evaluate": 1, "sample": 2',
        '"evaluate": 0, "sample": 0',
        (
            SEEDS,
            STREAMS,
        ),
    ),
    Fault(
        "training draws as an evaluation does",
        "training/rollouts.py",
        'stream="train"',
        'stream="evaluate"',
        (STREAMS,),
    ),
    Fault(
        "an evaluation draws as training does",
        "evaluation/held_out.py",
        'stream: str = "evaluate"',
        'stream: str = "train"',
        (STREAMS,),
    ),
    Fault("samples are drawn as in an evaluation", "cli/sample.py", 'stream="sample"', 'stream="evaluate"', (STREAMS,)),
    Fault(
        "training draws with the settings of an evaluation",
        "training/checked_policy.py",
        "seeds=call.seeds.to(self.device), evaluate=evaluate",
        "seeds=call.seeds.to(self.device), evaluate=True",
        (STREAMS,),
    ),
    Fault(
        "an evaluation draws with the settings of training",
        "evaluation/held_out.py",
        "fit=fit, evaluate=evaluate",
        "fit=fit, evaluate=False",
        (STREAMS,),
    ),
    Fault(
        "log-probs that differ either way cancel",
        "training/metrics.py",
        'self.add("logprob_diff", difference.abs(), mask)',
        'self.add("logprob_diff", difference, mask)',
        (DIFFERENCE,),
    ),
    Fault(
        "the reference is the policy itself",
        "training/logprob_passes.py",
        "needs_reference_moments), policy.reference)",
        "needs_reference_moments))",
        (BY_HAND,),
    ),
    Fault(
        "group ids come again in the next step", "sampling.py", "start = step * prompts if", "start = 0 if", (STREAMS,)
    ),
    Fault(
        "the same minibatches in every pass", "trainer.py", "self.completed, update))", "self.completed, 0))", (PASSES,)
    ),
    Fault(
        "the same minibatches in every step",
        "trainer.py",
        "key=(self.seed, self.completed, update)",
        "key=(self.seed, 0, update)",
        (PASSES,),
    ),
    Fault(
        "the same prompts in every step",
        "training/rollouts.py",
        "prompt_indices(self.seed, completed,",
        "prompt_indices(self.seed, 0,",
        (PASSES,),
    ),
    # --- the update
    Fault(
        "the schedule is an update ahead",
        "training/updates.py",
        "updates_per_step + self.done)",
        "updates_per_step + self.done + 1)",
        (BY_HAND,),
    ),
    Fault(
        "one rate for all updates of a step",
        "training/updates.py",
        "updates_per_step + self.done)",
        "updates_per_step)",
        (BY_HAND,),
    ),
    Fault("a rate that is not set", "training/updates.py", 'group["lr"] = rate', "pass", (BY_HAND,)),
    Fault(
        "a cosine over steps",
        "training/updates.py",
        "total=self.settings.steps * self.settings.updates_per_step",
        "total=self.settings.steps",
        (BY_HAND,),
    ),
    Fault(
        "the rate of the next step is reported",
        "training/updates.py",
        "self.settings.updates_per_step - 1)",
        "self.settings.updates_per_step)",
        (BY_HAND,),
    ),
    Fault(
        "no weight decay",
        "training/optimizers.py",
        '"weight_decay": settings.weight_decay',
        '"weight_decay": 0.0',
        (BY_HAND,),
    ),
    Fault(
        "weight decay as part of the gradient",
        "training/optimizers.py",
        "torch.optim.AdamW(",
        "torch.optim.Adam(",
        (BY_HAND,),
    ),
    Fault(
        "gradients are measured and not clipped",
        "training/updates.py",
        "clip_grads_with_norm_(parameters, limit, norm",
        "clip_grads_with_norm_(parameters, math.inf, norm",
        (BY_HAND,),
    ),
    Fault(
        "older weights held against the limit of a sampler with these",
        "guards/gradients.py",
        "if rollout.version == self.policy.version:",
        "if self.updates.done == 0:",
        (OLDER,),
    ),
    Fault(
        "a biased sampler's weights upside down",
        "divergence.py",
        "old - sampled",
        "sampled - old",
        (f"{CORRECTION}a_biased_sampler_gives_the_true_gradient",),
    ),
    Fault(
        "a slice cut too short",
        "training/micro_batches.py",
        "end = max(lengths[row] for row in rows)",
        "end = min(lengths[row] for row in rows)",
        (ADDITIVITY,),
    ),
    Fault(
        "an entropy bonus without gradient",
        "training/gradient.py",
        'entropy="grad" if entropy else "value"',
        'entropy="value"',
        (BY_HAND,),
    ),
    Fault(
        "an entropy bonus without gradient in a sequence's loss",
        "training/gradient.py",
        "for name, x in self.gradients.items()]",
        'for name, x in self.gradients.items() if name != "entropy"]',
        (ADDITIVITY,),
    ),
    Fault(
        "a fixed length that is the rollout's width",
        "training/minibatches.py",
        "max_decisions=rollout.max_decisions",
        "max_decisions=rollout.mask.shape[1]",
        (FIXED,),
    ),
    # --- what is reported
    Fault(
        "the last update's loss",
        "training/step.py",
        "sum(map(sum, self.losses)) / len(self.losses)",
        "sum(self.losses[-1])",
        (BY_HAND,),
    ),
    Fault(
        "the last update's gradient norm",
        "training/step.py",
        "sum(self.norms) / len(self.norms)",
        "self.norms[-1]",
        (BY_HAND,),
    ),
    Fault(
        "padding counts in means over decisions",
        "training/metrics.py",
        "mask.sum(dtype=torch.float64)",
        "torch.tensor(mask.numel(), dtype=torch.float64)",
        (BY_HAND,),
    ),
    Fault(
        "trackers get every step as one",
        "trainer.py",
        "logger.log(report.metrics, step=report.step)",
        "logger.log(report.metrics, step=1)",
        (TRACKERS,),
    ),
    Fault(
        "monitors are measured in every step",
        "training/rollouts.py",
        "samples, step=completed + 1)",
        "samples)",
        (ADVANTAGE,),
    ),
    Fault(
        "an early streak that makes a later one converged",
        "guards/zero_std.py",
        "self.count = 0\n            self.streak_best = -math.inf",
        "self.count = 0",
        ("tests/training/test_guards.py::test_an_early_streak_is_no_convergence_of_a_later_one",),
    ),
    Fault(
        "a gate that compares with the first steps for ever",
        "builtin/kl_gate.py",
        "[*self._past, mean][-_STEPS:]",
        "[*self._past, mean][:_STEPS]",
        ("tests/builtin/test_kl_gate.py::test_the_share_is_compared_with_the_last_twenty_steps",),
    ),
    Fault(
        "planned passes without the last, smaller one",
        f"{PLAN}src/grpokit_plan/needs.py",
        "math.ceil(self.rows / self.micro_batch(decisions)[0])",
        "self.rows // self.micro_batch(decisions)[0]",
        (PLANNED_PASSES,),
    ),
    Fault(
        "a planned pass for old log-probs though one update needs none",
        f"{PLAN}src/grpokit_plan/needs.py",
        "not exact and self.updates > 1",
        "not exact",
        (PLANNED_PASSES,),
    ),
    Fault(
        "a monitor's spread counts as something to learn from",
        "guards/zero_std.py",
        "scores = step.scores.trained\n        reward",
        "scores = step.scores\n        reward",
        (AGAIN,),
    ),
    Fault(
        "a run waits for one more evaluation than its patience",
        "runs/run.py",
        ">= rule.patience",
        "> rule.patience",
        (PATIENT,),
    ),
    Fault(
        "a broken reward passes where one prompt is unscorable",
        "guards/rewards.py",
        "all(reasons)",
        "any(reasons)",
        (MUTE,),
    ),
    Fault(
        "a reward whose failures are skipped counts as mute",
        "guards/rewards.py",
        "step.scores.failed[i] or ",
        "",
        (SKIPPED,),
    ),
    Fault(
        "rows that a reward says it cannot score count as unscored",
        "guards/rewards.py",
        "[*compress(counts, scorable)]",
        "counts",
        (NOT_COUNTED,),
    ),
    Fault(
        "a reward that raised counts as one that leaves rows unscored",
        "guards/rewards.py",
        " & ~step.scores.lost",
        "",
        (NOT_COUNTED,),
    ),
    Fault(
        "the step that loads a reward's weights counts for a hint at workers",
        "guards/rewards.py",
        "STEPS = (2, 3, 4)",
        "STEPS = (1, 2, 3, 4)",
        (WORKERS,),
    ),
    Fault(
        "a reward that scores elsewhere gets a hint at workers",
        "guards/rewards.py",
        " if not isinstance(term.reward, Submits)",
        "",
        (ELSEWHERE,),
    ),
    Fault(
        "a reward that rose against a negative weight fell",
        "report/view.py",
        '"fell" if change.change < 0 else "rose, although its weight is negative"',
        '"fell"',
        (GOT_WORSE,),
    ),
    Fault(
        "an even monitor is named among those that fell",
        "report/view.py",
        'other.verdict == "worse"',
        'other.verdict != "better"',
        (FALLEN,),
    ),
    Fault(
        "a reward's parameters are no part of its scale",
        "run_folder/scales.py",
        "_factory(one) != _factory(two) or ",
        "",
        (SCALES,),
    ),
    Fault(
        "a sum of rewards on two scales is compared",
        "run_folder/scales.py",
        " and trained.isdisjoint(on_another_scale(first, other))",
        "",
        (SCALES,),
    ),
    Fault(
        "an even monitor rings",
        "report/scores.py",
        'c.monitor and c.verdict == "worse"',
        'c.monitor and c.verdict != "better"',
        (EVEN,),
    ),
    Fault(
        "ties count as another best",
        "runs/rescore.py",
        "not bool(best_in_both.any())",
        "bool(x.argmax() != y.argmax())",
        (ANOTHER_BEST,),
    ),
    # --- rewards elsewhere
    Fault(
        "a forked copy goes on with the run",
        "processes/forks.py",
        "os._exit(0)",
        "pass",
        (FORKS,),
    ),
    Fault(
        "an answer to an earlier request counts",
        "rewards/worker_pool.py",
        "(process, number) == (self.process.pid, self.number)",
        "process == self.process.pid",
        (ANSWERS,),
    ),
    Fault(
        "an answer of another process counts",
        "rewards/worker_pool.py",
        "(process, number) == (self.process.pid, self.number)",
        "number == self.number",
        (ANSWERS,),
    ),
    Fault(
        "a copy goes on behind the check of prompts",
        "data/sequences.py",
        "            with forks_ended():\n                check(portion)",
        "            check(portion)",
        (FORKS,),
    ),
    Fault(
        "a copy goes on behind a tracker",
        "tracking/trackers.py",
        "            with forks_ended():\n                act()",
        "            act()",
        (FORKS,),
    ),
    Fault(
        "a copy goes on behind a plugin's light module",
        "registry/entry_points.py",
        "        with forks_ended():\n            if not all(part.",
        "        if True:\n            if not all(part.",
        ("tests/processes/test_forks.py::test_the_copy_of_a_plugins_light_module_ends",),
    ),
    Fault(
        "a copy goes on behind the state of a policy",
        "training/checkpoint.py",
        "@forks_ended()\ndef _whole(",
        "def _whole(",
        ("tests/processes/test_forks.py::test_the_copy_of_a_checkpoints_part_ends",),
    ),
    Fault(
        "a service's connection has several requests",
        f"{HTTP}service.py",
        'headers=[("Connection", "close")]',
        "headers=[]",
        (ONE_REQUEST,),
    ),
    Fault(
        "a service closes the connection of the newest client",
        f"{HTTP}service.py",
        "oldest = min(",
        "oldest = max(",
        (STRANGERS,),
    ),
    Fault(
        "a service reads bodies in chunks",
        f"{HTTP}service.py",
        'b"transfer-encoding" in dict(event.headers)',
        "False",
        (CHUNKS,),
    ),
    Fault(
        "a service unpacks pictures before it knows their sizes",
        f"{HTTP}wire.py",
        "        json.loads(body, object_pairs_hook=_Sizes())\n",
        "",
        (UNPACKED,),
    ),
    Fault(
        "each picture of a service's request has the whole limit",
        f"{HTTP}wire.py",
        "self.pixels += width * height",
        "self.pixels = width * height",
        (UNPACKED,),
    ),
    Fault(
        "a key of a service's request may appear twice",
        f"{HTTP}wire.py",
        "            if key in packed:",
        "            if False:",
        (TWICE,),
    ),
    Fault(
        "a service's protocol may be true",
        f"{HTTP}reward.py",
        'type(health["protocol"]) is not int',
        "False",
        (ANOTHER_SERVICE,),
    ),
    Fault(
        "a key of a server's answer may appear twice",
        f"{HTTP}client.py",
        "return parse_json(text)",
        "return __import__('json').loads(text)",
        (ANOTHER_SERVICE,),
    ),
    Fault(
        "JSON of a service's request has any number of values",
        f"{HTTP}json_limits.py",
        ' and text.count(b",") < VALUES',
        "",
        (MANY_VALUES,),
    ),
    Fault(
        "JSON of a service's request has any number of objects",
        f"{HTTP}json_limits.py",
        ' + text.count(b"{")',
        "",
        (MANY_VALUES,),
    ),
    Fault(
        "a server may take its time for each byte",
        f"{HTTP}client.py",
        "Timer(end - time.monotonic(), cut)",
        "Timer(600, cut)",
        (DRIPS,),
    ),
    Fault(
        "an evaluation replaces what belongs to another run",
        "runs/evaluations.py",
        'read_object(folder / DATA)["train"] is None',
        "True",
        (OWN_FOLDER,),
    ),
    Fault(
        "a full disk behind the output is no failure",
        "cli/app.py",
        "(0 if display.complete() else FAILED)",
        "0",
        (FULL_DISK,),
    ),
    Fault(
        "a report shows what a link leads to",
        "run_folder/reader.py",
        "if place.is_symlink():",
        "if False:",
        (LINKS,),
    ),
    Fault(
        "JSON may be nested until Python's stack ends",
        "files.py",
        "if _depth(content) > _DEEPEST:",
        "if False:",
        ("tests/test_files.py::test_json_has_at_most_a_hundred_levels",),
    ),
    Fault(
        "a repeated key of JSON counts once",
        "files.py",
        "if len(content) < len(pairs):",
        "if False:",
        (REPEATED_KEY,),
    ),
    # --- advantages
    Fault(
        "returns to go count from the next decision",
        "advantages.py",
        "(earned.cumsum(1) - earned)",
        "earned.cumsum(1)",
        (TO_GO,),
    ),
    Fault(
        "groups that were drawn again keep the former rewards of decisions",
        "training/dynamic_sampling.py",
        "            own[row] = latest\n",
        "            pass\n",
        (MERGED_REWARDS,),
    ),
    Fault(
        "rloo without weights",
        "advantages.py",
        "    difference = b.groups.centre(b.totals, b.scored)",
        "    difference = b.groups.centre(b.matrix.sum(-1), b.scored)",
        (WEIGHTS,),
    ),
    Fault(
        "the trainer passes no weights",
        "trainer.py",
        "self.advantage, trained.matrix, trained.weights,",
        "self.advantage, trained.matrix, trained.weights.sign(),",
        (ADVANTAGE,),
    ),
    Fault(
        "monitors are trained on",
        "trainer.py",
        "trained = scores.trained",
        "trained = scores",
        (ADVANTAGE,),
    ),
    Fault(
        "bad samples count by their diversity, too",
        "builtin/diversity.py",
        "torch.where(advantages > 0, advantages * factor, advantages)",
        "advantages * factor",
        (DIVERSITY,),
    ),
    Fault(
        "gdpo's second z-score inside each group",
        "advantages.py",
        "batch_std(total, b.scored, std) + eps)",
        "b.groups.std(total, b.scored, std) + eps)",
        (GDPO,),
    ),
    Fault(
        "rloo without clip",
        "advantages.py",
        "(n - 1).clamp(min=1)\n    return _finished(b, advantages, b.totals, clip, rewards)",
        "(n - 1).clamp(min=1)\n    return _finished(b, advantages, b.totals, None, rewards)",
        (CLIP,),
    ),
    Fault(
        "the batch's std is always unbiased",
        "group_statistics.py",
        "x.std(correction=_correction(std))",
        "x.std()",
        (
            BIASED,
            GDPO,
        ),
    ),
    Fault(
        "small differences count as none",
        "group_statistics.py",
        "8 * torch.finfo(x.dtype).eps",
        "torch.finfo(x.dtype).eps ** 0.5",
        (SMALL,),
    ),
    Fault(
        "rounding tells equal sums apart",
        "group_statistics.py",
        "8 * torch.finfo(x.dtype).eps",
        "0 * torch.finfo(x.dtype).eps",
        (EQUAL,),
    ),
    Fault("advantages in fp32", "reward_totals.py", "rewards.double()", "rewards.float()", (FP64,)),
    Fault(
        "integer rewards give integer advantages",
        "advantages.py",
        "rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()",
        "rewards.dtype",
        (FP64,),
    ),
    Fault(
        "a reward that scored no row poisons the others",
        "reward_totals.py",
        "column[rows].mean() if bool(rows.any()) else 0.0",
        "column[rows].mean()",
        (UNSCORED,),
    ),
    Fault("the std of a single score", "group_statistics.py", "if len(x) < 2:", "if len(x) < 1:", (SINGLE,)),
    Fault(
        "a gap keeps a group from being constant",
        "group_statistics.py",
        "torch.where(rows, x, -torch.inf)",
        "torch.where(rows, x, torch.inf)",
        (ZERO_STD,),
    ),
    Fault(
        "one row that does not teach stands for its group",
        "group_statistics.py",
        'zero_rows.to(ids.device), reduce="amin"',
        'zero_rows.to(ids.device), reduce="amax"',
        (ZERO_STD,),
    ),
    # --- objectives
    Fault("sapo's tau in fp32", "builtin/objectives.py", "ratio.new_tensor(self.tau_neg)", "self.tau_neg", (SAPO,)),
    Fault(
        "dapo without its higher clip",
        "objectives.py",
        "clip_range_high: Positive | None = 0.28",
        "clip_range_high: Positive | None = None",
        (DEFAULTS,),
    ),
    Fault(
        "gspo with the range of tokens",
        "objectives.py",
        "clip_range: Positive = 3e-4",
        "clip_range: Positive = 0.2",
        (DEFAULTS,),
    ),
    Fault("clip fractions by the lower range", "objectives.py", "(ratio > high)", "(ratio > 2 - low)", (DEFAULTS,)),
    Fault("cispo's cap is lost", "builtin/objectives.py", "clamp(max=self.ratio_cap)", "clamp(max=5.0)", (KEYWORDS,)),
    Fault(
        "sapo's tau is lost",
        "builtin/objectives.py",
        "advantages > 0, self.tau_pos",
        "advantages > 0, 1.0",
        (KEYWORDS,),
    ),
    Fault(
        "vespo by the mean of the ratios",
        "builtin/objectives.py",
        "log().sum(-1, keepdim=True)",
        "log().mean(-1, keepdim=True)",
        (VESPO, GOLDEN),
    ),
    Fault("vespo's weight with a gradient", "builtin/objectives.py", "ratio.detach().log()", "ratio.log()", (VESPO,)),
    Fault(
        "vespo's signs swapped",
        "builtin/objectives.py",
        "torch.where(advantages >= 0, self.k_pos",
        "torch.where(advantages < 0, self.k_pos",
        (VESPO, GOLDEN),
    ),
    Fault("dppo drops what moves back, too", "builtin/objectives.py", "mask & far & (", "mask & far | (", (DPPO,)),
    Fault(
        "dppo by the ratio",
        "divergence.py",
        "logprobs.exp() - old_logprobs.exp()",
        "(logprobs - old_logprobs).exp() - 1",
        (DPPO,),
    ),
    Fault(
        "dppo by one bound for tokens and flows",
        "builtin/objectives.py",
        "usual = 0.15 if old.mean is None else 1e-5",
        "usual = 1e-5",
        (DPPO,),
    ),
    Fault(
        "dppo always by the ratio of a token",
        "builtin/objectives.py",
        "log_ratio(new, old, mask, self.ratio) > 0",
        'log_ratio(new, old, mask, "token") > 0',
        ("tests/test_objectives.py::test_dppo_asks_its_own_ratio_where_a_decision_moves",),
    ),
    Fault("no weights of steps", "training/gradient.py", "if weights is None:", "if True:", (STEP_WEIGHTS,)),
    Fault(
        "vespo slice by slice",
        "builtin/objectives.py",
        '''"""Always: the weight is the row's."""
        return True''',
        "return False",
        (ADDITIVITY_VESPO,),
    ),
    Fault(
        "luspo without the length",
        "builtin/objectives.py",
        'default="sequence_sum"',
        'default="sequence_mean"',
        (GOLDEN,),
    ),
    Fault("a sum over rows", "objectives.py", '"sequence_sum": rows', '"sequence_sum": 1', (REDUCTIONS, GOLDEN)),
    Fault(
        "a bias correction without its gradient",
        "objectives.py",
        "kl = kl * ratio\n",
        "kl = kl * ratio.detach()\n",
        (KL_HAND, KL_TRUE, GOLDEN),
    ),
    Fault("a guarded ratio that drifts", "divergence.py", "(difference + drift)", "difference", (GUARD, GUARD_DRIFT)),
    Fault("a guarded ratio without s", "divergence.py", "_per_dimension(std) * (diff", "(diff", (GUARD,)),
    Fault(
        "a velocity penalty that is one of means",
        "divergence.py",
        "(mean - ref_mean) / v_coef",
        "(mean - ref_mean)",
        (VELOCITY_KL,),
    ),
    Fault(
        "old means that the rollout has not",
        "training/logprob_passes.py",
        "exact = exact and not (means and rollout.old.mean is None)",
        "pass",
        (GUARD_OLD,),
    ),
    Fault(
        "a pass for old log-probs that forgets the means",
        "training/logprob_passes.py",
        "moments=means",
        "moments=False",
        (GUARD_OLD, GUARD_FLOW),
    ),
    Fault(
        "the reference's means found in every update",
        "training/gradient.py",
        "needs_reference_moments or batch.reference is not None:",
        "needs_reference_moments:",
        (REFERENCE_ONCE,),
    ),
    Fault(
        "means of the reference that do not fit",
        "training/logprob_passes.py",
        "size <= _KEPT_BYTES)",
        "True)",
        (REFERENCE_ONCE,),
    ),
    Fault(
        "means of another slice",
        "training/checked_policy.py",
        "whole[name][rows, decisions] = x",
        "whole[name][rows, : x.shape[1]] = x",
        (REFERENCE_ONCE,),
    ),
    Fault(
        "an off-policy mask by the wrong sign",
        "objectives.py",
        "-log_ratio(new.detach()",
        "log_ratio(new.detach()",
        (OFF_POLICY, GOLDEN),
    ),
    Fault("an off-policy mask for every row", "objectives.py", "(advantages < 0) & (drift", "(drift", (OFF_POLICY,)),
    Fault(
        "an off-policy mask slice by slice",
        "objectives.py",
        'self.ratio == "sequence" or self.off_policy_mask_threshold is not None',
        'self.ratio == "sequence"',
        (OFF_POLICY,),
    ),
    # --- filters of a whole step
    Fault("the lowest entropies", "builtin/entropy_filter.py", "(1 - share)", "share", (TOP, GOLDEN)),
    Fault(
        "equal entropies apart",
        "builtin/entropy_filter.py",
        "threshold - _ROUNDING",
        "threshold - 0 * _ROUNDING",
        (TIES,),
    ),
    Fault(
        "the entropy of other rows",
        "training/minibatches.py",
        "known.entropy[index]",
        "known.entropy[: len(index)]",
        (TOP_GRADIENT,),
    ),
    Fault(
        "an entropy coefficient that acts above its target",
        "builtin/entropy_target.py",
        "self._coef if low else 0.0",
        "self._coef",
        (COEFFICIENT,),
    ),
    Fault(
        "an entropy coefficient that moves the wrong way",
        "builtin/entropy_target.py",
        "if self._entropy <= self.target else",
        "if self._entropy > self.target else",
        (COEFFICIENT, BONUS),
    ),
    Fault(
        "an entropy coefficient that is not saved",
        "trainer.py",
        "            **self._modifiers.parts(),\n",
        "",
        (COEFFICIENT_RESUMED, COEFFICIENT_FAILED),
    ),
    Fault(
        "rows of weight 0 in the normaliser",
        "training/minibatches.py",
        "    rows = rows[signal.weights[rows] != 0]\n",
        "",
        (LEFT_OUT,),
    ),
    Fault(
        "the row weights of other rows",
        "training/minibatches.py",
        "signal.weights[own]",
        "signal.weights[own - share.start]",
        ("tests/processes/test_same_numbers.py",),
    ),
    Fault(
        "a modifier that does not see what the one before it did",
        "training/modifier.py",
        "            signal = answer\n",
        "",
        ("tests/training/test_modifier.py::test_modifiers_act_in_their_order",),
    ),
    Fault(
        "row weights and KL weights in one tensor",
        "training/minibatches.py",
        "kl_weights=ones.clone()",
        "kl_weights=ones",
        ("tests/training/test_modifier.py::test_what_changes_the_weights_in_place_leaves_the_kl_alone",),
    ),
    Fault(
        "a modifier that is not told of the updates before",
        "trainer.py",
        "before_updates=self.version == version",
        "before_updates=True",
        ("tests/training/test_modifier.py::test_a_minibatch_knows_whether_weights_have_changed",),
    ),
    Fault(
        "the states of two modifiers of one class mixed up",
        "training/modifier.py",
        'f"{name}-{count + 1}" if count else name',
        'f"{len(self._named)}-{name}"',
        ("tests/training/test_modifier.py::test_two_of_one_class_have_their_own_metrics_and_states",),
    ),
    Fault(
        "of two modifiers with one name the first is lost",
        "training/modifier.py",
        "type(other).__name__ == name",
        "type(other) is type(modifier)",
        ("tests/training/test_modifier.py::test_two_of_one_class_have_their_own_metrics_and_states",),
    ),
    Fault(
        "a batch counts its rows from 0 in each process",
        "training/minibatches.py",
        "numbers=own,",
        "numbers=own - share.start,",
        ("tests/training/test_modifier.py::test_the_numbers_of_a_batch_are_places_in_the_signal",),
    ),
    Fault(
        "check of a modifier: what it is given may change",
        f"{CHECK}check.py",
        "changed = [name for name, x in given.items() if not torch.equal(x, before[name])]",
        "changed: list[str] = []",
        (f"{CHECK_TESTS}test_modifiers.py::test_what_is_wrong_is_caught",),
    ),
    Fault(
        "only the first type of a union counts",
        "settings.py",
        "for part in sorted(get_args(hint), key=lambda part: part is NoneType):",
        "for part in sorted(get_args(hint), key=lambda part: part is NoneType)[:1]:",
        ("tests/test_settings.py::test_each_type_of_a_union_counts",),
    ),
    Fault(
        "a modifier's metric in place of the trainer's",
        "training/step.py",
        "        check_metrics(further, own_metrics)\n",
        "",
        ("tests/training/test_modifier.py::test_a_wrong_answer_stops_the_step",),
    ),
    Fault(
        "a KL of weight 0 that still has a gradient",
        "objectives.py",
        "weights * kl_divergence(new, reference, mask & (weights != 0), self.kl)",
        "kl_divergence(new, reference, mask, self.kl)",
        ("tests/builtin/test_kl_gate.py::test_the_kl_is_that_of_some_rows",),
    ),
    Fault(
        "an entropy coefficient that nobody uses",
        "trainer.py",
        "            self._modifiers.objective(self.objective),\n",
        "            self.objective,\n",
        (BONUS,),
    ),
    Fault(
        "groups without spread kept",
        "training/dynamic_sampling.py",
        "zero.nonzero()[:, 0].tolist()",
        "[]",
        (REPLACED,),
    ),
    Fault(
        "groups drawn again for ever",
        "training/dynamic_sampling.py",
        "while attempt < most:",
        "while attempt < 99:",
        (BOUNDED,),
    ),
    Fault(
        "replaced groups at the end",
        "training/dynamic_sampling.py",
        "return rollout.select(rollout.groups.argsort(stable=True))",
        "return rollout",
        (REPLACED,),
    ),
    Fault(
        "scores of replaced groups kept",
        "training/dynamic_sampling.py",
        "matrix[rows], lost[rows] = new.matrix, new.lost",
        "pass",
        (REPLACED, UNSCORED_GROUP),
    ),
    Fault(
        "an attempt with the seeds of the first",
        "sampling.py",
        "(attempt,) if attempt else ()",
        "()",
        (REPLACED, SEEDS),
    ),
    Fault("a run's draws changed", "sampling.py", "(attempt,) if attempt else ()", "(attempt,)", (SEEDS,)),
    Fault(
        "the reward before replacing is the one after",
        "training/dynamic_sampling.py",
        "first.scores().totals.nanmean()",
        "groups.scores().totals.nanmean()",
        (FIRST_DRAW,),
    ),
    Fault("a further prompt that was used", "sampling.py", "if i not in taken", "if True", (FURTHER,)),
    Fault(
        "a penalty for length without its cache", "builtin/text_rewards.py", "-over / self.cache", "-1.0", (OVERLONG,)
    ),
    Fault(
        "all n-grams count as repeated",
        "builtin/text_rewards.py",
        "len(ngrams) - len(set(ngrams))",
        "len(ngrams)",
        (REPETITION,),
    ),
    Fault(
        "Arabic decimal and thousands signs swapped",
        "builtin/numerals.py",
        '0x66B: ".", 0x66C: ","',
        '0x66B: ",", 0x66C: "."',
        (NOTATIONS,),
    ),
    Fault(
        "a checklist that scores without one of its answers",
        f"{JUDGE}checklist.py",
        "if not known or len(known) < len(values):",
        "if not known:",
        (UNANSWERED,),
    ),
    Fault(
        "a judge with a temperature in extra is not asked again",
        f"{JUDGE}service.py",
        'self.fields.get("temperature") == 0',
        "self.temperature == 0",
        (ASKED_AGAIN,),
    ),
    Fault(
        "requests that make up for a pause",
        f"{JUDGE}calls.py",
        "place = max(self._next, time.monotonic())",
        "place = max(self._next, 0.0)",
        (PAUSE,),
    ),
    Fault(
        "words below each other that lose their space",
        f"{OCR}scoring.py",
        "and here not in begins:",
        "and here >= 0:",
        (BELOW,),
    ),
    Fault("a crop without its last row", f"{GROUNDING}crop_match.py", "math.ceil(box.y2)", "int(box.y2)", (CROPS,)),
    # --- the token fast path
    Fault(
        "attention that sees the next token", f"{HF}cpu/causal_blocks.py", "place > last", "place > last + 1", (BLOCKS,)
    ),
    Fault(
        "a window too long", f"{HF}cpu/causal_blocks.py", "place <= last - window", "place < last - window", (BLOCKS,)
    ),
    Fault(
        "a block's gradient in place of all",
        f"{HF}cpu/causal_blocks.py",
        "[:, :, seen] += to_key",
        "[:, :, seen] = to_key",
        (BLOCKS,),
    ),
    Fault(
        "an own token that is hidden",
        f"{HF}tokens/group_decoding.py",
        "columns > self.column",
        "columns >= self.column",
        (WRITTEN,),
    ),
    Fault(
        "prompts padded in sight",
        f"{HF}tokens/group_decoding.py",
        "prompt = slots >= self.lengths[:, None]",
        "prompt = slots > self.lengths[:, None]",
        (WRITTEN,),
    ),
    Fault(
        "a position too late",
        f"{HF}tokens/group_decoding.py",
        "cache.positions[..., t]",
        "cache.positions[..., t + 1]",
        (WRITTEN,),
    ),
    Fault(
        "samples that left still count",
        f"{HF}tokens/group_decoding.py",
        "        self.lengths = self.lengths[prompts]\n",
        "",
        (WRITTEN,),
    ),
    Fault(
        "samples of uneven groups that look at other prompts",
        f"{HF}tokens/group_decoding.py",
        "return flat if self._grid is None else flat[self._grid[1]]",
        "return flat[: len(self.prompt_of)]",
        (WRITTEN,),
    ),
    Fault(
        "samples that stay in the first group",
        f"{HF}tokens/group_decoding.py",
        "self._group(prompt_of)",
        "self._group(prompt_of * 0)",
        (WRITTEN,),
    ),
    Fault(
        "gradients of padding in place of tokens",
        f"{HF}tokens/packed_attention.py",
        "return gradient[places], None, None",
        "return gradient[: len(places)], None, None",
        (ONE_PASS,),
    ),
    Fault(
        "samples out of order after attention",
        f"{HF}tokens/packed_attention.py",
        "places[own] = begun + real",
        "places[own] = real",
        (ONE_PASS,),
    ),
    Fault(
        "samples behind their prompt's first token",
        f"{HF}tokens/packed_attention.py",
        "torch.arange(prompt, prompt + length)",
        "torch.arange(length)",
        (ONE_PASS,),
    ),
    Fault(
        "positions on three axes that are not looked at",
        f"{HF}tokens/packing.py",
        "positions = plan.positions if plan.positions is not None else arrangement.positions()",
        "positions = arrangement.positions()",
        (THREE_AXES,),
    ),
    Fault(
        "forbidden tokens take probability",
        f"{HF}tokens/packing.py",
        "forbidden=forbidden,",
        "forbidden=None,",
        (THREE_AXES,),
    ),
    Fault(
        "a soft cap without its factor",
        f"{HF}tokens/packed_attention.py",
        "rules.scale / rules.softcap",
        "rules.scale",
        (ONE_PASS,),
    ),
    Fault(
        "layers tried near the beginning only",
        f"{HF}tokens/joint_layers.py",
        "torch.randint(2**20",
        "torch.randint(2",
        (JOINT,),
    ),
    Fault(
        "values that are turned",
        f"{HF}tokens/joint_layers.py",
        "cos, sin = (x[0, :, None] for x in rotation)",
        "sin, cos = (x[0, :, None] for x in rotation)",
        (JOINT_CALLS,),
    ),
    Fault(
        "an adapter left out of decoding",
        f"{HF}tokens/linear_layers.py",
        "total += module.get_delta_weight(name).to(total)",
        "pass",
        (MERGED,),
    ),
    Fault(
        "an adapter's first steps rounded away",
        f"{HF}tokens/linear_layers.py",
        "_rounded_by_chance(total, dtype)",
        "total.to(dtype)",
        (FIRST_STEPS,),
    ),
    Fault("a norm's gradient without its mean", f"{HF}tokens/lean_layers.py", ".sub_(normed.mul_(mean))", "", (LEAN,)),
    Fault(
        "a head's gradient without its scale",
        f"{HF}tokens/fused_head.py",
        "row_slope * -job.scale",
        "row_slope * -1.0",
        (HEAD,),
    ),
    Fault(
        "entropy without the mean logit",
        f"{HF}tokens/fused_head.py",
        "(target_logits - own - mean)",
        "(target_logits - own)",
        (HEAD,),
    ),
    Fault("log-probs before truncation", f"{HF}tokens/drawing.py", "log_total += mass.log()", "pass", (TRUNCATED,)),
    Fault(
        "top-p of all tokens",
        f"{HF}tokens/truncation.py",
        "left = (p * _at_least(p, lowest)).sum(1, keepdim=True)",
        "left = p.sum(1, keepdim=True)",
        (BY_HAND_TRUNCATION,),
    ),
    # --- draws
    Fault("a running sum in fp32", "sampling.py", "logprobs.double().exp()", "logprobs.exp()", (RARE,)),
    Fault(
        "a draw at the very end", "sampling.py", "torch.nextafter(total, torch.zeros_like(total))", "total", (EDGES,)
    ),
    Fault("a draw on an edge", "sampling.py", "right=True", "right=False", (EDGES,)),
    Fault("uniforms that stop short of 1", "sampling.py", "+ 0.5) * 2.0**-52", "+ 0.5) * 2.0**-53", (FREQUENCIES,)),
    # --- GLM-Image
    Fault(
        "height and width of a grid exchanged",
        f"{GLM}grids.py",
        "torch.stack([torch.zeros_like(height), height, width])",
        "torch.stack([torch.zeros_like(height), width, height])",
        (STOCK, PLACES),
    ),
    Fault(
        "a grid that moves in time",
        f"{GLM}grids.py",
        "torch.stack([torch.zeros_like(height), height, width])",
        "torch.stack([height, height, width])",
        (STOCK, PLACES),
    ),
    Fault(
        "a grid without width",
        f"{GLM}grids.py",
        "torch.stack([torch.zeros_like(height), height, width])",
        "torch.stack([torch.zeros_like(height), height, height])",
        (STOCK, PLACES),
    ),
    Fault(
        "the large grid begins too early",
        f"{GLM}grids.py",
        "return max(self.rows, self.columns)",
        "return min(self.rows, self.columns)",
        (PLACES,),
    ),
    Fault(
        "the large grid before the draft",
        f"{GLM}grids.py",
        "(self.draft, self.large)",
        "(self.large, self.draft)",
        (PLACES,),
    ),
    Fault(
        "a source picture without its end",
        f"{GLM}grids.py",
        "done = start + grid.count",
        "done = start + grid.count + 1",
        (SOURCES,),
    ),
    Fault(
        "visual log-probs without the temperature",
        f"{GLM}policy.py",
        'scale=1 / float(rollout.trace.per_row["temperature"][0])',
        "scale=1.0",
        (STOCK,),
    ),
    Fault(
        "the draft's decisions in place of the large grid's",
        f"{GLM}policy.py",
        "before = self._trained.start",
        "before = 0",
        (PARTS,),
    ),
    Fault(
        "end tokens inside a grid",
        f"{GLM}writer.py",
        "torch.arange(config.text_config.vision_vocab_size) >= config.image_start_token_id",
        "torch.arange(config.text_config.vision_vocab_size) < 0",
        (CODES,),
    ),
    Fault(
        "a decoder that is told the time of the next step",
        f"{GLM}painter.py",
        "timestep=time.to(latents.device, non_blocking=True).expand(rows) - 1",
        "timestep=time.to(latents.device, non_blocking=True).expand(rows)",
        (PAINTED,),
    ),
    Fault(
        "a flow's steps scored outside of its window",
        f"{HF}diffusion/flow_policy.py",
        "t, own_steps[t], condition)",
        "t, t, condition)",
        (FLOW_CONTRACT,),
    ),
    Fault(
        "a flow's weights of another row's window",
        f"{HF}diffusion/flow_policy.py",
        "to(old.logprobs).repeat_interleave(group_size, 0)",
        "to(old.logprobs).repeat(group_size, 1)",
        (f"{FLOW_TESTS}test_every_row_has_the_weights_of_its_own_window",),
    ),
    Fault(
        "a flow's rows that share the noise of a step",
        f"{HF}diffusion/flow_policy.py",
        "self._noise(rows, 1 + k, mode.size)",
        "self._noise(group, 1 + k, mode.size)",
        (FLOW_SHARED,),
    ),
    Fault(
        "a flow's path before the window for each row",
        f"{HF}diffusion/flow_policy.py",
        "x = self._noise(group if window and settings.shared_noise else rows, 0, mode.size)",
        "x = self._noise(rows, 0, mode.size)",
        (FLOW_SHARED,),
    ),
    Fault(
        "noised copies of one and the same sample",
        f"{HF}diffusion/flow_policy.py",
        "group if window and settings.shared_noise else rows",
        "group if settings.shared_noise and not evaluate else rows",
        (FLOW_COPY,),
    ),
    Fault(
        "noised copies with the same noise",
        f"{HF}diffusion/flow_policy.py",
        "self._noise(seeds, 1 + t, mode.size)",
        "self._noise(seeds, 1, mode.size)",
        (FLOW_COPY,),
    ),
    Fault("a copy's score without its weight", "flow.py", "t ** _POWERS[self.weight] * ", "", (COPY,)),
    Fault("a copy's prediction as if without noise", "flow.py", "mean=x0 - t * error", "mean=x0 - error", (COPY,)),
    Fault("nft at an advantage of 0", "builtin/objectives.py", "mask & (advantages != 0)", "mask", (NFT,)),
    Fault("nft's divisors with a gradient", "builtin/objectives.py", "error.detach().abs()", "error.abs()", (NFT,)),
    Fault(
        "evaluations of a flow without its average",
        f"{HF}diffusion/flow_policy.py",
        "with self.averaged() if evaluate else nullcontext():",
        "with nullcontext():",
        (FLOW_AVERAGE,),
    ),
    Fault(
        "an exported adapter without its scale",
        f"{HF}diffusion/saving.py",
        '* (scale if ".lora_B." in name else 1)',
        "* 1",
        (EXPORTED,),
    ),
    Fault(
        "tokens that all pictures with one text share",
        f"{GLM}dit.py",
        "(p.text, *map(digest, p.images), seed)",
        "(p.text, seed)",
        (f"{GLM_TESTS}test_edits.py::test_prompts_with_one_text_and_different_pictures_have_their_own_tokens",),
    ),
    Fault(
        "tokens of an earlier writer that are painted on",
        f"{GLM}dit.py",
        "            self._kept.clear()\n",
        "",
        (HALVES,),
    ),
    Fault(
        "phases that freeze nothing",
        "phases/phased_trainer.py",
        "            parameter.requires_grad_(False)\n",
        "            pass\n",
        (PHASE_FROZEN,),
    ),
    Fault(
        "a phase that does not know what an earlier one has changed",
        "phases/phased_trainer.py",
        "                    other.version = trainer.version\n",
        "                    pass\n",
        (PHASE_VERSIONS,),
    ),
    Fault(
        "phases that begin anew on resume",
        "phases/phased_trainer.py",
        'parts: dict[str, Stateful] = {"course": self.course}',
        "parts: dict[str, Stateful] = {}",
        (PHASE_RESUME,),
    ),
    Fault(
        "a phase with the run's rates",
        "config/schema.py",
        'update={**own, "steps"',
        'update={"steps"',
        (PHASE_RUN,),
    ),
    Fault(
        "phases that draw the same",
        "runs/build.py",
        "seed=Phase.seed(config.seed, place) if phase.name else config.seed",
        "seed=config.seed + 0 * place",
        (PHASE_RUN,),
    ),
    Fault(
        "evaluations of both halves without the average",
        f"{GLM}policy.py",
        "self._evaluating() if evaluate else nullcontext()",
        "nullcontext()",
        (HALVES_AVERAGE,),
    ),
    # --- rollouts of several parts
    Fault(
        "parts of which one is exact",
        "training/rollout_parts.py",
        '"exact": all(',
        '"exact": any(',
        (MERGING,),
    ),
    Fault(
        "the newest weights among parts",
        "training/rollout_parts.py",
        '"version": min(',
        '"version": max(',
        (MERGING,),
    ),
    Fault(
        "parts without rows tell nothing",
        "training/rollout_parts.py",
        "    together: dict[str, Any] = {",
        "    parts = [part for part in parts if part.rows] or parts[:1]\n    together: dict[str, Any] = {",
        (MERGING,),
    ),
    Fault(
        "old log-probs of older weights believed",
        "training/logprob_passes.py",
        "rollout.exact and rollout.version == policy.version and",
        "rollout.exact and",
        (OLDER,),
    ),
    Fault(
        "row seeds along the wrong axis",
        "types.py",
        "self.row.reshape(len(self.group), -1)  # [B] -> [P, G]",
        "self.row.reshape(-1, len(self.group)).T",
        (SEED_PLACES,),
    ),
    # --- phases and resume
    Fault(
        "only the first parameter of other policies trains again",
        "phases/phased_trainer.py",
        "for parameter in wanted:\n                parameter.requires_grad_(True)",
        "for parameter in wanted[:1]:\n                parameter.requires_grad_(True)",
        (PHASE_FROZEN,),
    ),
    Fault(
        "the version of one policy given to others",
        "phases/phased_trainer.py",
        "                if other.policy is trainer.policy:\n",
        "                if True:\n",
        (PHASE_RESUME,),
    ),
    Fault(
        "optimizer moments by place",
        "training/trainer_state.py",
        "for place, name in enumerate(ours)}",
        "for place, name in enumerate(theirs)}",
        (SHARED_NAME,),
    ),
    Fault(
        "a flow's average that is not loaded",
        f"{HF}diffusion/flow_policy.py",
        "            self._average.load_state_dict(state)\n",
        "            pass\n",
        (FLOW_AVERAGE,),
    ),
    Fault(
        "a policy that is not told what was loaded",
        "trainer.py",
        "self._policy.updated(self.version)\n        self._probe.check(when=when)",
        "self._probe.check(when=when)",
        (PHASE_VERSIONS,),
    ),
    Fault(
        "an engine that is not told what was loaded",
        f"{LM}policy.py",
        "            self._engine.forget()\n",
        "            pass\n",
        (ENGINE_LOADED,),
    ),
    Fault(
        "a finished run without checkpoints is begun again",
        "run_folder/header.py",
        "if resume and not has_checkpoint else []",
        "if False else []",
        (NO_CHECKPOINTS,),
    ),
    # --- adapters
    Fault(
        "an adapter without its alpha",
        f"{HF}models/adapters.py",
        "lora_alpha=settings.alpha,",
        "lora_alpha=2 * settings.r,",
        (SCALE,),
    ),
    Fault(
        "a flow's adapter without its alpha",
        f"{HF}diffusion/adapters.py",
        "lora_alpha=settings.alpha,",
        "lora_alpha=2 * settings.r,",
        (FLOW_SCALE,),
    ),
    Fault(
        "an adapter that trains on is held to the bare base",
        f"{HF}models/settings.py",
        "self.adapter is None or self.adapter.adapter is not None or",
        "self.adapter is None or",
        (CONTINUED,),
    ),
    Fault(
        "an adapter does not learn what to remember of a picture to edit",
        f"{GLM}painter.py",
        "layer.k_caches.pop(), layer",
        "layer.k_caches.pop().detach(), layer",
        (REMEMBERED,),
    ),
    Fault(
        "a bias that DoRA scales",
        f"{HF}models/dora.py",
        'given["base_result"] - base.bias',
        'given["base_result"]',
        (DORA,),
    ),
    # --- settings
    Fault(
        "settings are not held to what their bases check",
        "settings.py",
        "for kind in reversed(type(settings).__mro__):",
        "for kind in [type(settings)]:",
        ("tests/test_settings.py::test_bad_settings_have_one_message",),
    ),
    # --- language models
    Fault(
        "a world's tokens count as decisions",
        f"{LM}worlds/conversations.py",
        "return ~self._told[:, :columns]",
        "return torch.ones_like(self._told[:, :columns])",
        (f"{CONVERSATION}[True]", WHOLE_CONVERSATION),
    ),
    Fault(
        "a world's tokens stand one place later",
        f"{LM}worlds/conversations.py",
        "place = slice(count, count + len(sent))",
        "place = slice(count + 1, count + 1 + len(sent))",
        (f"{CONVERSATION}[True]", f"{CONVERSATION}[False]"),
    ),
    Fault(
        "the plain path computes with logits of a world's tokens",
        f"{LM}plain_path.py",
        "torch.where(decided[..., None], logits, 0.0)",
        "logits",
        (f"{OF_A_WORLD}[False-plain]",),
    ),
    Fault(
        "the packed path scores a world's tokens",
        f"{HF}tokens/packing.py",
        "column = column[completions.decided[row, start:length]]",
        "pass",
        (f"{OF_A_WORLD}[True-plain]",),
    ),
    Fault(
        "the plain path scores without temperature",
        f"{LM}plain_path.py",
        "logits.float() / temperature",
        "logits.float()",
        (PLAINLY,),
    ),
    Fault(
        "the plain path scores without sets of tokens",
        f"{LM}plain_path.py",
        "if completions.kept is not None:",
        "if False:",
        (PLAINLY,),
    ),
    Fault(
        "the packed path without a model's own scale",
        f"{LM}packed_path.py",
        "scale=head.scale / temperature",
        "scale=1 / temperature",
        (
            f"{BOTH_PATHS}[cohere]",
            f"{BOTH_PATHS}[granite]",
        ),
    ),
    Fault(
        "Cohere's scale is lost",
        f"{LM}head.py",
        'float(getattr(config, "logit_scale", None) or 1.0)',
        "1.0",
        (f"{BOTH_PATHS}[cohere]",),
    ),
    Fault(
        "Granite's scale is lost",
        f"{LM}head.py",
        'float(getattr(config, "logits_scaling", None) or 1.0)',
        "1.0",
        (f"{BOTH_PATHS}[granite]",),
    ),
    Fault(
        "an engine with the model's own repetition penalty",
        f"{LM}engines/engine.py",
        '"repetition_penalty": 1.0,',
        "",
        (ENGINE_SCORES,),
    ),
    Fault(
        "evaluations scored at the temperature of training",
        f"{HF}tokens/sampler.py",
        "scored_at=temperature or self.temperature",
        "scored_at=self.temperature",
        (
            EVALUATED,
            GLM_EVALUATED,
        ),
    ),
    Fault(
        "evaluations of a toy scored at the temperature of training",
        "plugins/grpokit-toy/src/grpokit_toy/autoregressive.py",
        "scored_at = temperature if temperature > 0 else self.temperature",
        "scored_at = self.temperature",
        (TOY_SCORES,),
    ),
    Fault(
        "an answer on the line behind an empty one",
        f"{LM}tasks/final_answer.py",
        "text[last.end() :].splitlines()",
        "text[last.end() :].split()",
        (MARKED,),
    ),
    Fault(
        "an answer of a world that fills the row",
        f"{LM}worlds/conversations.py",
        "count + len(sent) >= columns",
        "count + len(sent) > columns",
        (f"{LM_TESTS}test_worlds.py::test_an_answer_that_leaves_no_room_for_the_model_ends_the_episode",),
    ),
    Fault(
        "what a world says for the model is scored",
        f"{LM}worlds/conversations.py",
        "[episode.output for episode in self._episodes]",
        "[[m for m in e.messages if m['role'] == 'assistant'][-1]['content'] for e in self._episodes]",
        (f"{LM_TESTS}test_worlds.py::test_rewards_see_the_models_own_words_and_torch_stays_as_it_was",),
    ),
    Fault(
        "the first question of a conversation is the prompt",
        "data/roles.py",
        "last = asked[-1]",
        "last = asked[0]",
        ("tests/test_layouts.py::test_layout",),
    ),
    Fault(
        "a cancelled task of a world is no error of its",
        "rewards/isolation.py",
        "except BaseException as error:",
        "except Exception as error:",
        (f"{WORLDS}an_error_that_quotes_the_template_and_is_no_exception_becomes_a_message",),
    ),
    Fault(
        "a world changes torch's global state",
        "rewards/isolation.py",
        "        with torch_state_kept():",
        "        if True:",
        (f"{WORLDS}rewards_see_the_models_own_words_and_torch_stays_as_it_was",),
    ),
    Fault(
        "worlds behind one that cannot be closed stay open",
        f"{LM}worlds/conversations.py",
        "stack.callback(self.worlds.close, episode.world)",
        "self.worlds.close(episode.world)",
        (f"{WORLDS}worlds_are_closed_after_a_rollout_an_error_and_the_check",),
    ),
    # --- environments
    Fault(
        "gym's reference is the network that a resume loads",
        f"{GYM}policy.py",
        "        self._reference()\n        self.actor.load",
        "        self.actor.load",
        (BUILT_WITH,),
    ),
    Fault(
        "gym's longest episode is that of the batch",
        f"{GYM}policy.py",
        "max_decisions=envs.limit",
        "max_decisions=len(actions)",
        (PLAYED,),
    ),
    Fault(
        "gym's evaluations branch",
        f"{GYM}policy.py",
        "if self._branch and not evaluate:",
        "if self._branch:",
        (BRANCHES,),
    ),
    Fault(
        "gym's evaluations are always greedy",
        f"{GYM}policy.py",
        "greedy=evaluate and self._greedy",
        "greedy=evaluate",
        (GREEDY,),
    ),
    Fault(
        "gym: an end at the limit of steps is a cut",
        f"{GYM}environments.py",
        "bool(cut and not ended)",
        "bool(cut)",
        (AT_THE_LIMIT,),
    ),
    Fault(
        "gym: a text is a number",
        f"{GYM}answers.py",
        'array.dtype.kind in "biuf"',
        'array.dtype.kind in "biufU"',
        (GYM_ANSWERS,),
    ),
    Fault(
        "gym: gymnasium's wrappers read an answer before it is checked",
        f"{GYM}answers.py",
        "isinstance(env, (OrderEnforcing, PassiveEnvChecker, TimeLimit))",
        "False",
        (GYM_ANSWERS,),
    ),
    Fault(
        "gym: a number is a truth",
        f"{GYM}answers.py",
        "number not in (0, 1)",
        "math.isnan(number)",
        (GYM_ANSWERS,),
    ),
    Fault(
        "gym: what another process casts is not checked",
        f"{GYM}environments.py",
        "return checked(gym.make(self.name, **self._options))",
        "return gym.make(self.name, **self._options)",
        (GYM_APART,),
    ),
    Fault(
        "gym: entropies of actions are summed over dimensions",
        f"{GYM}actor.py",
        "(self.std.log() + of_std_1).mean()",
        "(self.std.log() + of_std_1).sum()",
        (GAUSSIAN_ENTROPY,),
    ),
    Fault(
        "gym: far observations are not cut",
        f"{GYM}actor.py",
        ".clamp(-_FAR, _FAR)",
        "",
        (CUT_AT_TEN,),
    ),
    # --- pictures
    Fault(
        "group seeds in the order of the call",
        f"{GLM}policy.py",
        '"seed": seeds.group.cpu()[order]',
        '"seed": seeds.group.cpu()',
        (MADE_AGAIN,),
    ),
    Fault(
        "a source that is kept for another size",
        f"{HF}diffusion/kept.py",
        "digest(arguments)",
        "digest(arguments[:2])",
        (KONTEXT,),
    ),
    Fault(
        "sweeps pair differences by place and not by seed",
        "runs/sweep.py",
        "gaps = [score - first[seed] for seed, score in main.items() if seed in first]",
        "gaps = [a - b for a, b in zip(main.values(), first.values(), strict=False)]",
        ("tests/runs/test_sweep.py::test_differences_are_paired_by_seed",),
    ),
    Fault(
        "the first turn of a user becomes the prompt",
        "data/roles.py",
        'if turn.get("role") == "user"]',
        'if turn.get("role") == "user"][:1]',
        ("tests/test_layouts.py::test_the_last_turn_of_a_user_is_the_prompt",),
    ),
    Fault(
        "the shards of a folder are unsorted",
        "data/readers.py",
        'sorted(path.glob("*.tar"))',
        'list(path.glob("*.tar"))',
        (SHARDS,),
    ),
    Fault(
        "the shards of a pattern are unsorted",
        "data/readers.py",
        "sorted(glob.glob(str(path)))",
        "glob.glob(str(path))",
        (SHARDS,),
    ),
    Fault(
        "pictures keep the colours of their own profile",
        "images.py",
        "return _in_srgb(_upright(picture))",
        "return _upright(picture)",
        (PROFILES,),
    ),
    Fault(
        "a resume compares with the edited copy of the config",
        "runs/resuming.py",
        "latest = checkpoint.latest(folder / CHECKPOINTS)",
        "latest = None",
        ("tests/runs/test_changed_prompts.py::test_the_config_of_the_checkpoint_counts_and_not_its_edited_copy",),
    ),
    Fault(
        "scores of an upgraded package count as of the same scale",
        "runs/resuming.py",
        "or not code.isdisjoint(packages)",
        "or False",
        ("tests/runs/test_changed_prompts.py::test_evaluations_by_another_version_of_a_component_are_set_aside",),
    ),
    Fault(
        "an observer that is gone is not told",
        "runs/run.py",
        'if "observers/" in name:',
        'if "guards/" in name:',
        ("tests/registry/test_entry_points.py::test_an_observer_that_is_gone_follows_no_step_and_a_warning_says_so",),
    ),
    Fault(
        "a spec for an older plugin API is read",
        "registry/compatibility.py",
        "is int and OLDEST_API <= spec.api <= API",
        "is int and spec.api <= API",
        ("tests/registry/test_compatibility.py::test_a_spec_for_another_api_is_refused_and_the_others_stay",),
    ),
    Fault(
        "a plugin loses all its specs to one for another plugin API",
        "registry/entry_points.py",
        "plugin.specs = [spec for spec in specs if readable(spec)]",
        "plugin.specs = specs if all(map(readable, specs)) else []",
        ("tests/registry/test_compatibility.py::test_a_spec_for_another_api_is_refused_and_the_others_stay",),
    ),
    Fault(
        "the older side is the other one",
        "registry/compatibility.py",
        "return any(version > Version(_version()) for version in lowest)",
        "return any(version <= Version(_version()) for version in lowest)",
        ("tests/registry/test_compatibility.py::test_a_plugin_that_fails_says_which_side_is_older",),
    ),
    Fault(
        "a plugin takes a name of the core",
        "registry/name_lookup.py",
        "return [owned for owned in matches if owned[0].package == CORE] or matches",
        "return [owned for owned in matches if owned[0].package != CORE] or matches",
        (
            "tests/registry/test_name_lookup.py::test_a_name_of_the_core_is_the_cores",
            "tests/registry/test_entry_points.py::test_a_name_of_the_core_means_the_cores",
        ),
    ),
    Fault(
        "two plugins with one name are no clash",
        "registry/name_lookup.py",
        "        elif len(others) > 1:",
        "        elif len(others) > 2:",
        ("tests/registry/test_name_lookup.py::test_two_distributions_with_one_name_are_told_apart",),
    ),
    Fault(
        "a run folder keeps short names",
        "runs/run.py",
        "self.config, self._warnings = with_lasting_names(self.config, names)",
        "_, self._warnings = with_lasting_names(self.config, names)",
        ("tests/runs/test_component_names.py::test_a_run_folder_says_whose_each_component_is",),
    ),
    Fault(
        "a resumed run takes the component of a newer plugin",
        "config/component_names.py",
        "            now = then\n",
        "            pass\n",
        (
            "tests/runs/test_component_names.py::test_a_clash_that_appears_later_stops_no_resume",
            "tests/runs/test_component_names.py::test_a_name_that_the_core_gets_later_means_what_it_meant",
        ),
    ),
    Fault(
        "a short name is another config than its long form",
        "runs/sweep.py",
        "with_lasting_names(config, resuming.names_before(folder / point.name))",
        "with_lasting_names(config)",
        ("tests/runs/test_component_names.py::test_a_finished_run_of_a_sweep_stays_finished",),
    ),
    Fault(
        "observers of two plugins share a name",
        "registry/entry_points.py",
        'found |= {f"{plugin.package}-{name}": observer',
        'found |= {f"{plugin.name}-{name}": observer',
        ("tests/registry/test_name_lookup.py::test_observers_of_two_distributions_have_names_of_their_own",),
    ),
    Fault(
        "what a killed report left stays for good",
        "files.py",
        "for left in (temporary, *_left_by_killed_writers(path)):",
        "for left in (temporary,):",
        ("tests/test_files.py::test_what_killed_writers_left_goes_with_the_next_write",),
    ),
    Fault(
        "an evaluation that was killed at its start is taken for other files",
        "run_folder/header.py",
        "        mark.touch()\n",
        "",
        ("tests/runs/test_killed_operations.py::test_a_kill_at_any_operation_of_an_evaluation",),
    ),
    Fault(
        "a sweep takes a run that was killed in its report for finished",
        "runs/sweep.py",
        "if not (place / REPORT).is_file():",
        "if False:",
        ("tests/runs/test_sweep.py::test_a_sweep_its_page_and_more_seeds",),
    ),
    Fault(
        "a report replaces any file",
        "report/page.py",
        "_TITLE_ENDS not in out.read_bytes()",
        "False",
        (REFUSED_INPUT,),
    ),
    Fault(
        "a sweep replaces another table",
        "runs/sweep.py",
        ".startswith(_STARTS)",
        ".startswith(str())",
        (REFUSED_INPUT,),
    ),
    Fault(
        "a new run deletes its prompts",
        "runs/run.py",
        "            before_training.keep_prompts(config, self.folder)\n",
        "",
        (REFUSED_INPUT,),
    ),
    Fault(
        "the interval of a change is not of paired differences",
        "evaluation/intervals.py",
        "differences.get(prompt, 0.0) - influence",
        "differences.get(prompt, 0.0) + influence",
        ("tests/evaluation/test_files.py::test_two_folders_are_compared_prompt_by_prompt",),
    ),
    Fault(
        "files that cannot be read are lost in silence",
        "evaluation/files.py",
        "                problems[row] = problem\n",
        "                pass\n",
        ("tests/evaluation/test_files.py::test_files_that_cannot_be_read_are_named_and_the_others_scored",),
    ),
    Fault(
        "weights are fetched though the user wants no downloads",
        "rewards/downloads.py",
        'in ("1", "ON", "YES", "TRUE"):',
        'in ("ON",):',
        ("plugins/grpokit-lpips/tests/test_reward.py::test_offline_nobody_is_asked",),
    ),
    Fault(
        "a run that is told to end goes on waiting for services",
        "runs/signals.py",
        "        ENDING.set()\n",
        "",
        ("tests/runs/test_signals.py::test_a_signal_ends_the_run_and_the_waiting_for_services[15]",),
    ),
    # --- what grpokit new writes
    Fault(
        "a scaffold allows every later grpokit",
        f"{CHECK}scaffold/templates/new/all/pyproject.toml.jinja",
        '"grpokit~=[[ version ]]"',
        '"grpokit>=[[ version ]]"',
        (SCAFFOLD_CI,),
    ),
    Fault(
        "a scaffold's CI checks no component",
        CHECK + "scaffold/templates/new/all/{dot}github/workflows/test.yml.jinja",
        "      - run: grpokit check [[ name ]]\n",
        "",
        (SCAFFOLD_CI,),
    ),
    Fault(
        "a scaffold publishes what was not tested",
        CHECK + "scaffold/templates/new/all/{dot}github/workflows/publish.yml.jinja",
        "    needs: test\n",
        "    needs: []\n",
        (SCAFFOLD_CI,),
    ),
    Fault(
        "a scaffold does not name its author",
        f"{CHECK}scaffold/write.py",
        "return done.stdout.strip() or _NOBODY",
        "return _NOBODY",
        (f"{CHECK_TESTS}test_write.py::test_its_authors_are_the_user_or_a_placeholder_that_the_readme_names[user]",),
    ),
)


def run(package: Path, tests: tuple[str, ...]) -> dict[str, bool]:
    """Run tests on a copy of the package; returns which of them passed.

    Raises:
        RuntimeError: some of them did not run at all.
    """
    plugins = sorted((package.parent / "plugins").glob("*/src"))
    paths = [str(package.parent), *map(str, plugins)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    options = ["--import-mode=importlib", *tests]
    done = subprocess.run(
        [*command, *options], cwd=REPO, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    outcomes = {
        test: [words[0] for words in lines if words[1] == test or words[1].startswith((f"{test}[", f"{test}::"))]
        for test in tests
    }
    if done.returncode not in (0, 1) or not all(outcomes.values()):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {test: "FAILED" not in results for test, results in outcomes.items()}


def plant(fault: Fault, package: Path) -> str:
    """Plant one fault, run its tests, and take it out again; returns what is wrong, or nothing."""
    path = (package.parent if fault.file.startswith("plugins/") else package) / fault.file
    text = path.read_text(encoding="utf-8")
    if (count := text.count(fault.old)) != 1:
        return f"its text stands {count} times in {fault.file}, expected once: {fault.old!r}"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        survived = [test for test, passed in run(package, fault.tests).items() if passed]
    except RuntimeError as error:
        return str(error)
    finally:
        path.write_text(text, encoding="utf-8")
    return f"survives {', '.join(survived)}" if survived else ""


def main(words: list[str]) -> int:
    """Plant the faults whose names hold one of `words` (all, where there is none); returns the exit code."""
    faults = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    if not faults:
        print(f"No fault has one of these words in its name: {', '.join(words)}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "grpokit"
        shutil.copytree(REPO / "grpokit", package, ignore=shutil.ignore_patterns("__pycache__"))
        for source in (REPO / "plugins").glob("*/src"):
            copied = Path(folder) / source.relative_to(REPO)
            shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            sound = run(package, tuple({test: None for fault in faults for test in fault.tests}))
        except RuntimeError as error:
            print(error)
            return 1
        broken = [test for test, passed in sound.items() if not passed]
        if broken:
            print("These tests fail without any fault, so they prove nothing:", *broken, sep="\n  ")
            return 1
        wrong = 0
        for fault in faults:
            start = time.perf_counter()
            problem = plant(fault, package)
            wrong += bool(problem)
            print(
                f"{time.perf_counter() - start:5.1f} s  {'SURVIVES' if problem else 'noticed'}  {fault.name}",
                flush=True,
            )
            if problem:
                print(f"         {problem}")
    print(f"{len(faults) - wrong} of {len(faults)} planted faults are noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
