from torchopt_cli.optimizer.execution.probe.recording import is_recording, recording


def test_it_is_known_whether_the_probe_is_at_work() -> None:
    assert not is_recording()
    with recording():
        with recording():
            pass
        assert is_recording()
    assert not is_recording()
