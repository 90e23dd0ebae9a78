"""Plans in files: JSON and YAML read alike, and every fault told with its line."""

import json
from pathlib import Path

import pytest
from skeletons import blocks, skeleton

from armillary import Colwise, Layout, Optional, PackedColwise, ParallelPlan, PlanError, plan_for, resolve
from armillary.plan.file import read_plan

PLAN = ParallelPlan({"blocks.*.up": "colwise", "blocks.*.down": "rowwise"})
MODEL = skeleton(blocks(2, {"up.weight": (8, 4), "down.weight": (4, 8)}))


def _file(folder: Path, text: str, name: str = "plan.json") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def _refused(file: Path) -> list[str]:
    with pytest.raises(PlanError) as caught:
        read_plan(file)
    assert caught.value.exit_code == 2
    return [str(problem).removeprefix(f"{file.parent}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.json", '{\n\t"blocks.*.up": {"packed_colwise": [1, 1]},\n\t"blocks.*.gate": null\n}'),
        ("plan.yaml", "blocks.*.up: {packed_colwise: [1, 1]}  # fused\nblocks.*.gate: null\n"),
        ("plan", '"blocks.*.up":\n  packed_colwise:\n  - 1\n  - 1\nblocks.*.gate: ~\n'),
    ],
)
def test_json_and_yaml_hold_the_same_overrides(tmp_path: Path, name: str, text: str) -> None:
    read = read_plan(_file(tmp_path, text, name))
    assert read == {"blocks.*.up": {"packed_colwise": [1, 1]}, "blocks.*.gate": None}
    merged = PLAN.merge({"blocks.*.gate": "colwise"}).merge(read)
    assert dict(merged) == {
        "blocks.*.up": PackedColwise([1, 1]),
        "blocks.*.down": PLAN.entries["blocks.*.down"],
    }


@pytest.mark.parametrize("name", ["Cosmos3OmniTransformer", "WanTransformer3DModel"])
def test_a_plan_can_be_written_and_given_back(tmp_path: Path, name: str) -> None:
    plan = plan_for(name)
    read = read_plan(_file(tmp_path, json.dumps(plan.to_json(), indent=1)))
    assert ParallelPlan.from_json(read) == plan
    assert plan.merge(read) == plan


def test_a_plan_with_a_context_and_a_class_is_written_in_sections(tmp_path: Path) -> None:
    written = {
        "class": "Toy",
        "tensor": {"up": {"optional": "colwise"}},
        "context": {"proj_out": {"gather_dim": 1}},
    }
    plan = ParallelPlan.from_json(read_plan(_file(tmp_path, json.dumps(written))))
    assert plan.entries == {"up": Optional("colwise")}
    assert plan.model_class == "Toy"
    assert plan.to_json() == written


def test_every_rule_knows_its_line(tmp_path: Path) -> None:
    file = _file(tmp_path, "# mine\nblocks.*.up: packed_colwise\ncontext.*.x: colwise\n", "plan.yaml")
    merged = PLAN.merge(read_plan(file))
    assert merged.sources["blocks.*.up"] == f"{file}:2"
    assert merged.sources["blocks.*.down"] == "plan"
    with pytest.raises(PlanError, match=rf"plan key 'context.\*.x' \({file}:3\) matches nothing"):
        resolve(MODEL, Layout(), plan=merged)


def test_what_a_file_says_serves_as_overrides_and_as_the_plan(tmp_path: Path) -> None:
    read = read_plan(_file(tmp_path, '{"blocks.*.up": {"colwise": {"gather": true}}, "blocks.*.down": null}'))
    resolved = resolve(MODEL, Layout(tp=2), plan=PLAN, overrides=read)
    assert resolved.styles == {f"blocks.{i}.up": Colwise(gather=True) for i in range(2)}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("plan.json", '{\n"a": "colwise"\n"b": 3}', "plan.json:3 is not JSON: Expecting ',' delimiter"),
        ("plan.yaml", "a: [\n", "plan.yaml:2 is not YAML: expected the node content, but found '<stream"),
        ("plan.yaml", "a: colwise\n\tb: x\n", "plan.yaml:2 is not YAML"),
        ("plan.json", "[1, 2]", "plan.json is not an object of module paths and styles"),
        ("plan.yaml", "", "plan.yaml is not an object of module paths and styles"),
        ("plan.yaml", "a: &x colwise\nb: *x\n", "plan.yaml has YAML aliases"),
        ("plan.yaml", "3: colwise\n", "plan.yaml:1: the key '3' is not text"),
        ("plan.yaml", "a: colwise\n? [b]\n: colwise\n", "plan.yaml:2: the key (sequence) is not text"),
        (
            "plan.json",
            '{"a": "colwise",\n"a": "rowwise"}',
            "plan.json:2: the key 'a' stands in line 1 already",
        ),
        ("plan.yaml", "a: !!python/name:os.system x\n", "plan.yaml:1 cannot be read: "),
        ("plan.json", '{"class": 3, "tensor": {}}', "plan.json: class 3 is not a name"),
        ("plan.json", '{"tensor": {}, "context": 3}', "plan.json: context: 3 is not a plan"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, name: str, text: str, line: str) -> None:
    (told,) = _refused(_file(tmp_path, text, name))
    assert told.removeprefix(f"{tmp_path}/").startswith(line)


def test_all_faults_of_a_file_are_told_with_their_lines(tmp_path: Path) -> None:
    file = _file(tmp_path, '{\n"a": "colwize",\n"b..c": "colwise",\n"d": {"optional": {"optional": "x"}}\n}')
    places = [line.split(")")[0] for line in _refused(file)]
    assert places == [f"plan key 'a' ({file}:2", f"plan key 'b..c' ({file}:3", f"plan key 'd' ({file}:4"]


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    assert "plan-file" in [problem.rule for problem in _raised(tmp_path / name).problems]


def _raised(file: Path) -> PlanError:
    with pytest.raises(PlanError) as caught:
        read_plan(file)
    return caught.value


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    assert "is not text" in str(_raised(tmp_path / "plan.json"))


def test_a_plan_for_another_class_is_one_line(tmp_path: Path) -> None:
    written = {"class": "Other", "tensor": {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}}
    with pytest.raises(PlanError, match=r"^the plan is for Other, and the model is a Toy; [^\n]*$"):
        resolve(MODEL, Layout(), plan=read_plan(_file(tmp_path, json.dumps(written))))
    other = read_plan(_file(tmp_path, json.dumps(plan_for("FluxTransformer2DModel").to_json())))
    with pytest.raises(PlanError) as caught:
        resolve(MODEL, Layout(), plan=PLAN, overrides=other)
    (problem,) = caught.value.problems
    assert f"keys of {tmp_path}/plan.json names a module of Toy, not even nearly" in problem.message
