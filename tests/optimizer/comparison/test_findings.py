from torchopt_cli.optimizer.comparison.findings import Finding, Kind, by_importance, note


def test_failures_lead_and_the_first_step_leads_among_them() -> None:
    late = Finding(Kind.LOSS, "late", step=9)
    early = Finding(Kind.PARAMETER, "early", step=2)
    process = Finding(Kind.EXIT_STATUS, "process")
    told = note(Kind.LOSS_DTYPE, "told", step=1)
    assert by_importance([told, late, early, process]) == (process, early, late, told)
    assert not told.fails
    assert late.fails


def test_causes_lead_and_what_is_seen_at_the_end_comes_last() -> None:
    printed = Finding(Kind.STDOUT, "printed")
    loss = Finding(Kind.LOSS, "loss", step=4)
    rate = Finding(Kind.LEARNING_RATE, "rate", step=4)
    settings = Finding(Kind.OPTIMIZER_SETTINGS, "settings")
    assert by_importance([printed, loss, rate, settings]) == (settings, rate, loss, printed)


def test_an_evaluation_before_a_step_leads_what_the_step_shows() -> None:
    loss = Finding(Kind.LOSS, "loss", step=5)
    evaluated = Finding(Kind.EVALUATION_OUTPUT, "evaluated after step 4", step=5)
    update = Finding(Kind.UPDATE, "update", step=4)
    assert by_importance([loss, evaluated, update]) == (update, evaluated, loss)


def test_another_mode_before_the_first_step_explains_what_is_drawn_behind_it() -> None:
    """Features are taken with dropout on; the head that is built then starts from other draws, and so does the sampler."""
    head = Finding(Kind.INITIAL_PARAMETERS, "the head starts otherwise", step=0)
    samples = Finding(Kind.SAMPLE_ORDER, "other samples", step=1)
    before = Finding(Kind.EVALUATION_MODE, "in training mode before step 1", step=1)
    assert by_importance([head, samples, before]) == (before, head, samples)
    later = Finding(Kind.EVALUATION_MODE, "in training mode after step 4", step=5)
    assert by_importance([later, samples, head]) == (head, samples, later)


def test_what_is_printed_before_one_run_ends_explains_that_it_does() -> None:
    printed = Finding(Kind.STDOUT, "loss printed after step 4", step=5)
    longer = Finding(Kind.OPTIMIZER_STEPS, "more steps", step=13)
    later = Finding(Kind.EVALUATION, "evaluated after step 12", step=13)
    rate = Finding(Kind.LEARNING_RATE, "rate", step=6)
    assert by_importance([longer, later, printed]) == (printed, later, longer)
    assert by_importance([longer, printed, rate]) == (rate, printed, longer)
    after = Finding(Kind.STDOUT, "printed after the end", step=14)
    assert by_importance([after, longer]) == (longer, after)


def test_what_is_printed_before_a_file_is_not_saved_explains_that_it_is_not() -> None:
    printed = Finding(Kind.STDOUT, "error printed after step 4", step=5)
    saved = Finding(Kind.CHECKPOINT_FILES, "saved once, not twice", step=9)
    value = Finding(Kind.CHECKPOINT_VALUE, "error saved")
    assert by_importance([value, saved, printed]) == (printed, saved, value)
    with_it = Finding(Kind.STDOUT, "no line says that it is saved", step=9)
    assert by_importance([with_it, value, saved]) == (saved, value, with_it)
    assert by_importance([printed, value]) == (value, printed)


def test_what_lies_between_two_steps_is_told_by_the_one_that_is_over() -> None:
    """A script of eight steps prints its mean loss behind the eighth, not at a ninth."""
    assert Finding(Kind.STDOUT, "mean loss", step=9).when == " after step 8"
    assert Finding(Kind.EVALUATION_OUTPUT, "untrained", step=1).when == " before step 1"
    assert Finding(Kind.LOSS, "loss", step=8).when == " at step 8"
    assert not Finding(Kind.FILES, "at the end").when
