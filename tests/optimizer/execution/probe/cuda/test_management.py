"""``torch.cuda`` itself, checkpoints, several devices and processes."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import _functions as layer_functions
from torch.utils.checkpoint import checkpoint


def test_devices_can_be_asked_about() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(0).name
    assert torch.cuda.get_device_capability(1) >= (8, 0)
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_initialized()
    assert torch.backends.cudnn.is_available()


def test_the_current_device_is_where_cuda_puts_things() -> None:
    with torch.cuda.device(1):
        assert torch.zeros(1).cuda().device == torch.device("cuda:1")
        assert torch.zeros(1, device="cuda").device == torch.device("cuda:1")
    assert torch.zeros(1).cuda().device == torch.device("cuda:0")
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:0")


def test_profilers_see_the_host(capfd: pytest.CaptureFixture[str]) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    x = torch.ones(2, device="cuda")
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        x @ x
    assert any(event.key == "aten::dot" for event in profile.key_averages())
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_memory_seeds_and_markers_are_answered() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved(1) == 0
    assert torch.cuda.mem_get_info()[1] > 0
    torch.cuda.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.range_pop()
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())


def test_streams_and_events() -> None:
    stream, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in "ab")
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        start.record()
        torch.zeros(1).cuda().record_stream(stream)
        end.record()
    assert torch.cuda.current_stream() is not stream
    torch.cuda.current_stream().wait_stream(stream)
    assert start.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)


def test_checkpoints_name_their_device() -> None:
    model, file = nn.Linear(2, 2).cuda(1), io.BytesIO()
    torch.save({"model": model.state_dict(), "count": torch.zeros(1)}, file)
    assert b"cuda:1" in file.getvalue()
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["model"]["weight"].device == torch.device("cuda:1")
    assert loaded["count"].device == torch.device("cpu")
    file.seek(0)
    assert torch.load(file, map_location="cpu")["model"]["weight"].device == torch.device("cpu")
    file.seek(0)
    assert torch.load(file, map_location="cuda:0")["count"].device == torch.device("cuda:0")
    assert pickle.loads(pickle.dumps(model.weight.data)).device == torch.device("cuda:1")


def test_activation_checkpointing_draws_again_what_it_drew() -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    torch.manual_seed(3)
    network(x).sum().backward()
    wanted, x.grad = x.grad, None
    torch.manual_seed(3)
    checkpoint(network, x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, wanted)  # type: ignore[arg-type]


def test_data_parallel_is_one_replica() -> None:
    model = nn.Linear(2, 1).cuda()
    parallel = nn.DataParallel(model)
    assert parallel.device_ids == [0]
    assert parallel(torch.ones(4, 2)).device == torch.device("cuda:0")
    assert next(iter(parallel.state_dict())) == "module.weight"


def test_nccl_goes_by_way_of_gloo(tmp_path: Path) -> None:
    distributed = torch.distributed
    distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        assert distributed.get_backend() == "nccl"
        total = torch.ones(2).cuda()
        distributed.all_reduce(total)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            distributed.all_reduce(torch.ones(2))
        distributed.barrier(device_ids=[0])
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).cuda(), device_ids=[0])
        model(torch.ones(4, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[4.0, 4.0]]
    finally:
        distributed.destroy_process_group()


def test_sync_batch_norm_computes_what_batch_norm_does_of_all_samples(tmp_path: Path) -> None:
    distributed = torch.distributed
    distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        values = torch.randn(6, 3, 5).mul(2).add(1).cuda()
        results: list[list[torch.Tensor]] = []
        for synchronized in (False, True):
            layer = torch.nn.BatchNorm1d(3).cuda()
            given = values.clone().requires_grad_()
            if synchronized:
                running = (layer.running_mean, layer.running_var)
                known = (layer.weight, layer.bias, *running, layer.eps, layer.momentum)
                out = layer_functions.SyncBatchNorm.apply(given, *known, distributed.group.WORLD, 1)
            else:
                out = layer(given)
            out.pow(3).sum().backward()
            found = (out, given.grad, layer.weight.grad, layer.bias.grad)
            results.append([*found, layer.running_mean, layer.running_var])  # type: ignore[list-item]
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    finally:
        distributed.destroy_process_group()


def test_compiled_modules_run_as_they_are_and_keep_their_prefix() -> None:
    model = nn.Linear(2, 1).cuda()
    compiled = torch.compile(copy.deepcopy(model), mode="max-autotune")
    x = torch.ones(3, 2).cuda()
    assert torch.equal(compiled(x), model(x))
    assert next(iter(compiled.state_dict())) == "_orig_mod.weight"

    @torch.compile
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    assert double(x).is_cuda


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": True}])
def test_optimizers_of_every_kind_step(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).cuda()
    plain = copy.deepcopy(model)
    for network, chosen in ((model, options), (plain, {"foreach": False})):
        optimizer = torch.optim.AdamW(network.parameters(), **chosen)
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.ones(4, 3).cuda()).square().sum().backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
    torch.testing.assert_close(model.weight, plain.weight)


def test_channels_last_is_kept_on_the_way_to_the_device() -> None:
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert images.cuda().is_contiguous(memory_format=torch.channels_last)
    moved = torch.zeros(2, 3, 4, 4).to("cuda", memory_format=torch.channels_last)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    layer = nn.Conv2d(3, 2, 3).cuda().to(memory_format=torch.channels_last)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.is_cuda
    layer = nn.Conv2d(3, 2, 3).to("cuda", memory_format=torch.channels_last)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
