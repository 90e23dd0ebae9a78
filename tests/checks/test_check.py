"""`check`: what a plan finds in a checkpoint's headers, and everything that is wrong with the two."""

import json
from pathlib import Path
from typing import Any

import pytest

from armillary import ArmillaryError, CheckpointError, PlanError
from armillary.checks.run import check, check_all
from armillary.models.cosmos3 import PLAN
from sparse import SUPER, write_headers, write_sparse

SMALL = {**SUPER, "num_hidden_layers": 2, "vocab_size": 1000}
EDGE = {**SMALL, "hidden_act": "relu2"}
STRANGER = {"_class_name": "StrangerTransformer2DModel"}
BLOCK: dict[str, tuple[int, ...]] = {
    "attn.to_q.weight": (64, 32),
    "attn.to_k.weight": (64, 32),
    "attn.to_v.weight": (64, 32),
    "attn.to_out.0.weight": (32, 64),
    "attn.to_out.0.bias": (32,),
    "ff.net.0.proj.weight": (128, 32),
    "ff.net.2.weight": (32, 128),
    "ada.weight": (96, 32),
    "norm.weight": (32,),
}


def _stranger(folder: Path) -> Path:
    blocks = {f"blocks.{i}.{name}": shape for i in range(3) for name, shape in BLOCK.items()}
    return write_headers(folder, STRANGER, blocks | {"proj_in.weight": (32, 4)})


def _file(folder: Path, plan: Any) -> Path:
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    return file


def test_a_registered_plan_is_held_against_the_headers(tmp_path: Path) -> None:
    report = check(write_sparse(tmp_path, EDGE, files=3), {"tp": 8})
    assert report.ok
    assert [rule.key for rule in report.rules] == [key for key, _ in PLAN]
    assert report.skipped_optional == ("layers.*.mlp.gate_proj", "layers.*.mlp_moe_gen.gate_proj")
    assert report.legal_tp == (1, 2, 4, 8, 16, 32, 64)
    assert sum(report.bytes_per_rank) == report.skeleton.nbytes + 7 * sum(h.nbytes for h in report.replicated)


def test_what_a_plan_would_split_is_told_without_a_degree(tmp_path: Path) -> None:
    report = check(write_sparse(tmp_path, SMALL))
    assert report.bytes_per_rank == (report.skeleton.nbytes,)
    assert {"lm_head.weight", "layers.1.mlp.down_proj.weight"} <= {held.name for held in report.split}
    sizes = [held.nbytes for held in report.replicated]
    assert sizes == sorted(sizes, reverse=True)
    assert report.replicated[0].name == "time_embedder.linear_2.weight"


def test_a_pipeline_is_checked_by_its_transformer(tmp_path: Path) -> None:
    write_sparse(tmp_path / "transformer", SMALL)
    assert check(tmp_path).folder == str(tmp_path / "transformer")
    assert check("toy-world", {"tp": 2}).ok


def test_faults_of_plan_and_degrees_are_all_in_the_report(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"layers.*.mlp.up_prj": "colwise", "layers.*.mlp.down_proj": None}
    report = check(write_sparse(tmp_path, SMALL), {"tp": 3, "ulysses": 5}, overrides=overrides)
    rules = {problem.rule for problem in report.problems}
    assert rules == {"key-matches-nothing", "column-unjoined", "tp-divides", "ulysses-divides"}
    assert not report.ok
    assert report.bytes_per_rank == ()


def test_every_rule_says_where_it_comes_from(tmp_path: Path) -> None:
    folder = write_sparse(tmp_path, {**SMALL, "parallel_plan": {"proj_in": {"colwise": {"gather": True}}}})
    file = _file(tmp_path, {"lm_head": None, "proj_out": {"colwise": {"gather": True}}})
    sources = {rule.key: rule.source for rule in check(folder, overrides=file).rules}
    assert sources["embed_tokens"] == "armillary.models.cosmos3"
    assert sources["proj_in"] == "config.json"
    assert sources["proj_out"] == f"{file}:1"
    assert "lm_head" not in sources


def test_a_class_without_a_plan_is_shown_how_to_write_one(tmp_path: Path) -> None:
    report = check(_stranger(tmp_path))
    (problem,) = report.problems
    assert problem.rule == "no-plan"
    assert '{"blocks.*.attn.to_q": "colwise", "blocks.*.attn.to_k": "colwise"' in problem.fix
    assert "armillary check MODEL --plan plan.json" in problem.fix


def test_any_class_can_be_checked_with_a_plan_from_a_file(tmp_path: Path) -> None:
    draft = check(_stranger(tmp_path)).plan_to_edit()
    report = check(tmp_path, {"tp": 4}, overrides=_file(tmp_path, draft))
    assert report.problems == ()
    assert report.legal_tp == (1, 2, 4, 8, 16, 32, 64)
    why = {held.name: held.why for held in report.replicated}
    assert why["blocks.1.ada.weight"] == "no rule decides it"
    assert why["blocks.1.attn.to_out.0.bias"] == "added once, after the sum"
    assert why["proj_in.weight"] == why["blocks.0.norm.weight"] == ""


def test_weights_that_leave_the_device_are_counted_apart(tmp_path: Path) -> None:
    folder = write_sparse(tmp_path, SMALL)
    whole, moved = check(folder, {"tp": 2}), check(folder, {"tp": 2}, residency={"evict": "auto"})
    assert moved.bytes_elsewhere[0] > 0
    assert moved.bytes_per_rank[1] + moved.bytes_elsewhere[1] == whole.bytes_per_rank[1]
    (problem,) = check(
        _stranger(tmp_path / "other"),
        overrides={"blocks.*.ada": {"colwise": {"gather": True}}},
        residency={"offload": "host"},
    ).problems
    assert problem.rule == "residency-family"


def test_the_document_has_the_agreed_form(tmp_path: Path) -> None:
    told = check(write_sparse(tmp_path, SMALL), {"tp": 3}).to_json()
    assert list(told) == [
        "ok",
        "rules",
        "split",
        "replicated",
        "skipped_optional",
        "bytes_per_rank",
        "problems",
    ]
    rule = told["rules"][1]
    assert rule == {
        "key": "layers.*.self_attn.to_q",
        "style": "colwise",
        "source": "armillary.models.cosmos3",
        "matched": ["layers.0.self_attn.to_q", "layers.1.self_attn.to_q"],
    }
    assert set(told["replicated"][0]) == set(told["split"][0]) == {"name", "bytes"}
    assert set(told["problems"][0]) == {"rule", "message", "fix"}
    assert json.loads(json.dumps(told)) == told


def test_what_cannot_be_checked_is_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(ArmillaryError) as caught:
        check(tmp_path, {"tp": "two"}, overrides=_file(tmp_path, ["colwise"]), residency={"prefetch": 0})
    rules = {problem.rule for problem in caught.value.problems}
    assert rules == {"checkpoint-weights", "degree-positive", "plan-form", "residency"}
    assert caught.value.exit_code == 2


def test_an_unknown_style_is_bad_input_not_a_failed_check(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan.json:1\): 'colwize' is not a style"):
        check(write_sparse(tmp_path, SMALL), overrides=_file(tmp_path, {"lm_head": "colwize"}))


def test_tensors_that_are_not_those_of_the_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="are missing from"):
        check(write_headers(tmp_path, SMALL, {"lm_head.weight": (1000, 5120)}))


def test_every_shipped_plan_fits_every_config_that_it_claims() -> None:
    checked = check_all()
    assert set(checked) >= {"Cosmos3OmniTransformer", "FluxTransformer2DModel"}
    for name, variants in checked.items():
        assert variants, name
        for variant in variants:
            assert variant.problems == (), (name, variant.name)
            assert 2 in variant.legal_tp, (name, variant.name)
