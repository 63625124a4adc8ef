# SPDX-License-Identifier: Apache-2.0
"""`slacktier plan`: examples decide as their text says, wrong input ends in one clear line, the page stands alone."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

# Imported once here, so that the first test that draws does not pay for it.
pytest.importorskip("matplotlib.figure", reason="needs matplotlib: pip install 'slacktier[plan]'")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "plan"


@pytest.fixture
def plan(slacktier: Any) -> Any:
    return lambda *words: slacktier("plan", *words)


def placed(report: dict[str, Any]) -> dict[int, tuple[str, int]]:
    return {layer["layer_id"]: (layer["device"], layer["cache_rows"]) for layer in report["layers"]}


class TestExamples:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("v41-1-disk", {1: ("host", 0), 14: ("nvme0", 0)}),
            ("v41-4-disks", {1: ("nvme", 750_000), 14: ("nvme", 250_000)}),
            ("v41-rdma-400", {1: ("node2", 0), 14: ("node2", 0)}),
            ("v41-rdma-100", {1: ("node2", 225_000), 14: ("node2", 0)}),
            ("v41-rdma-25", {1: ("node2", 1_000_000), 14: ("node2", 0)}),
            ("v41-tcp", {1: ("node2", 0), 14: ("node2", 0)}),
            ("qwen38-ple", {1: ("nvme", 1_000_000)}),
            ("input-embedding", {0: ("host", 1_000_000)}),
            ("unified-memory", {1: ("nvme0", 0)}),
            ("gemma4-columns", {k: ("host" if k < 6 else "nvme0", 0) for k in range(42)}),
        ],
    )
    def test_example_decides_as_it_says(self, plan: Any, name: str, expected: dict[int, tuple[str, int]]) -> None:
        code, out, err = plan(EXAMPLES / f"{name}.yaml", "--json")
        report = json.loads(out)
        assert (code, err) == (0, "")
        assert placed(report) == expected
        assert report["fits"]
        assert all(str(layer["layer_id"]) in layer["sentence"] for layer in report["layers"])

    def test_every_example_is_tested(self) -> None:
        assert len(list(EXAMPLES.glob("*.yaml"))) == 10

    def test_freed_memory_and_hicache_size_of_v41_on_disk(self, plan: Any) -> None:
        memory = json.loads(plan(EXAMPLES / "v41-4-disks.yaml", "--json")[1])["host_memory"]
        assert memory["stock_gib"] == pytest.approx(188.8, abs=0.1)  # the paper: 190 of 223 GiB
        assert memory["freed_gib"] == memory["stock_gib"]
        # The paper gave 185 GiB of what it freed to the host KV cache.
        assert memory["hicache_size_gb"] * 4 * 1e9 / 2**30 == pytest.approx(185, abs=4)

    def test_table_without_window_names_why_the_cheaper_tier_is_refused(self, plan: Any, tmp_path: Path) -> None:
        code, out, _ = plan(EXAMPLES / "input-embedding.yaml")
        assert code == 0
        assert "nothing hides its reads" in out
        content = yaml.safe_load((EXAMPLES / "input-embedding.yaml").read_text())
        content["devices"] = [device for device in content["devices"] if device["tier"] != "dram"]
        slow = tmp_path / "slow.yaml"
        slow.write_text(yaml.safe_dump(content))
        code, out, _ = plan(slow)
        assert code == 1
        assert "layer 0 has no window" in out

    def test_unified_memory_gets_no_hicache_flag(self, plan: Any) -> None:
        assert "hicache" not in plan(EXAMPLES / "unified-memory.yaml")[1]
        assert json.loads(plan(EXAMPLES / "unified-memory.yaml", "--json")[1])["host_memory"]["hicache_size_gb"] is None


class TestWhatIf:
    def test_standard_cases_answer_the_usual_questions(self, plan: Any) -> None:
        code, out, _ = plan(EXAMPLES / "v41-1-disk.yaml", "--what-if", "all", "--json")
        cases = {case["case"]: case for case in json.loads(out)["what_if"]}
        assert code == 0
        assert list(cases) == ["sessions=256", "instances=2", "disks=2", "table=2", "table=5", "row-bits=4"]
        assert cases["disks=2"]["freed_gib"] == pytest.approx(188.8, abs=0.1)
        # The paper: 2x and 5x tables leave the overhead as it is and free more.
        assert cases["table=5"]["slowdown_ms"] == cases["table=2"]["slowdown_ms"] == 0
        assert cases["table=5"]["freed_gib"] == pytest.approx(5 * 91.2, abs=1)

    def test_changes_can_be_combined(self, plan: Any) -> None:
        _, out, _ = plan(EXAMPLES / "v41-1-disk.yaml", "--what-if", "sessions=256,disks=8", "--json")
        (case,) = json.loads(out)["what_if"]
        assert case["case"] == "sessions=256,disks=8"
        assert any("256" in note for note in case["notes"])

    def test_4_bit_rows_let_the_same_cache_hold_more(self, plan: Any) -> None:
        _, out, _ = plan(EXAMPLES / "v41-rdma-25.yaml", "--what-if", "row-bits=4", "--json")
        (case,) = json.loads(out)["what_if"]
        assert sum(layer["cache_rows"] for layer in case["layers"]) + case["cache_rows_spare"] == 2_000_000

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("speed=2", "what-if 'speed': expected one of sessions, instances, disks, table, row-bits"),
            ("disks=0", "what-if disks=0: expected a whole number above 0"),
            ("disks=two", "what-if disks=two: expected a whole number above 0"),
            ("row-bits=2", "what-if row-bits=2: only 4 is known"),
            ("sessions=4", "measured from 8 to 128 sessions; 4 is below that"),
        ],
    )
    def test_unknown_or_impossible_case_is_refused(self, plan: Any, text: str, says: str) -> None:
        code, out, err = plan(EXAMPLES / "v41-1-disk.yaml", "--what-if", text)
        assert (code, out) == (2, "")
        assert says in err


class TestPaper:
    def test_table_3_comes_out_as_printed(self, plan: Any) -> None:
        code, out, _ = plan("--paper", "--json")
        report = json.loads(out)
        assert code == 0
        assert report["table_3"]["slowdown_ms"] == [0.13, 0.63, 2.65, 2.65, 5.65, 5.65]
        assert report["table_3"]["paper_ms"] == report["table_3"]["slowdown_ms"]
        assert report["table_3"]["rmse_ms"] == pytest.approx(0.12, abs=0.005)  # as the paper says

    def test_nvme_rows_of_tables_2_and_9_are_within_a_quarter_of_a_millisecond(self, plan: Any) -> None:
        report = json.loads(plan("--paper", "--json")[1])
        assert len(report["table_2"]["rows"]) == 12
        assert len(report["table_9"]["rows"]) == 20
        for rmse in (report["table_2"]["rmse_ms"], report["table_9"]["rmse_ms"], report["nvme_rmse_ms"]):
            assert 0.05 < rmse < 0.25

    def test_paper_s_conclusions_are_our_decisions(self, plan: Any) -> None:
        first, cached, remote, embedding = json.loads(plan("--paper", "--json")[1])["conclusions"]
        assert [(x["device"], x["cache_rows"]) for x in first["layers"]] == [("host", 0), ("nvme", 0)]
        assert cached["layers"][0]["cache_rows"] == 750_000
        assert [(x["device"], x["cache_rows"]) for x in remote["layers"]] == [("rdma", 0), ("rdma", 0)]
        assert [x["device"] for x in embedding["layers"]] == ["host"]

    def test_tables_and_assumptions_are_printed(self, plan: Any) -> None:
        code, out, _ = plan("--paper")
        assert code == 0
        assert "Table 3" in out
        assert "Assumed:" in out
        assert "s = kappa = 0" in out

    def test_paper_takes_no_file(self, plan: Any) -> None:
        assert plan("--paper", EXAMPLES / "v41-1-disk.yaml")[0] == 2


class TestOutput:
    def test_json_is_one_object_and_nothing_else(self, plan: Any) -> None:
        code, out, err = plan(EXAMPLES / "v41-1-disk.yaml", "--json")
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
        assert json.loads(out)["slowdown_ms"] == 0

    def test_plan_that_does_not_fit_exits_1_and_says_what_would(self, plan: Any, tmp_path: Path) -> None:
        text = (EXAMPLES / "v41-1-disk.yaml").read_text().replace("capacity_gib: 1800", "capacity_gib: 10")
        file = tmp_path / "tight.yaml"
        file.write_text(text)
        code, out, _ = plan(file)
        assert code == 1
        assert "2 units of nvme0 instead of 1" in out
        assert "97.7 GiB of room on host for layer 1; now 10.0 GiB" in out

    def test_page_holds_figure_and_numbers_and_loads_nothing(self, plan: Any, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        code, _, _ = plan(EXAMPLES / "v41-1-disk.yaml", "--what-if", "all", "--html", page)
        text = page.read_text()
        assert code == 0
        assert "<svg" in text
        assert "layer 14: window 9.35 ms" in text
        assert "2.35, 2.08 late" in text  # layer 1, if it were on the disk
        assert "<script" not in text
        links = set(re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?([^\"')>\s]+)", text))
        assert all(link.startswith("#") for link in links)

    def test_page_of_42_layers_shows_depth(self, plan: Any, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        plan(EXAMPLES / "gemma4-columns.yaml", "--html", page)
        assert "rows there, nvme0 (nvme)" in page.read_text()

    def test_names_from_the_file_cannot_become_markup(self, plan: Any, tmp_path: Path) -> None:
        text = (EXAMPLES / "v41-1-disk.yaml").read_text().replace("nvme0", "'<b>disk'")
        file, page = tmp_path / "odd.yaml", tmp_path / "plan.html"
        file.write_text(text)
        assert plan(file, "--html", page)[0] == 0
        assert "<b>disk" not in page.read_text()

    @pytest.mark.parametrize(
        ("where", "says"),
        [("none/plan.html", "no such directory"), ("dir", "is a directory"), ("closed/plan.html", "cannot be written")],
    )
    def test_page_that_cannot_be_written_is_refused(
        self, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, says: str
    ) -> None:
        (tmp_path / "dir").mkdir()
        (tmp_path / "closed").mkdir()
        # Root may write anywhere, so the kernel's answer is given here.
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "closed")
        code, out, err = plan(EXAMPLES / "v41-1-disk.yaml", "--html", tmp_path / where)
        assert (code, out) == (2, "")
        assert says in err


class TestInput:
    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("slo_pct: 1.0", "slo_pct: -1", "slo_pct: -1"),
            ("slo_pct: 1.0", "slo_pct: .nan", "slo_pct: nan"),
            ("slo_pct: 1.0", "slo_pct: .inf", "slo_pct: inf"),
            ("slo_pct: 1.0", "slo_pct: '1 %'", "slo_pct: '1 %'"),
            ("slo_pct: 1.0", "slo_ms: 0.3", "slo_ms: unknown key"),
            ("a_us: 300", "a_ms: 0.3", "devices[0].read.a_ms: unknown key"),
            ("a_us: 300", "a_us: -300", "devices[0].read.a_us: -300"),
            ("tier: nvme", "tier: nvmee", "devices[0].tier: unknown value 'nvmee', expected 'dram', 'nvme'"),
            ("{1: 0.27, 14: 9.35}", "{1: 270, 14: 9350}", "window of 270 ms is longer than the step of 29.4 ms"),
            ("{1: 0.10, 14: 3.50}", "{1: 0.10}", "windows: layer 14 has no window at 8 sessions"),
            ("{1: 0.10, 14: 3.50}", "{1: -0.10, 14: 3.50}", "windows[0].window_ms[1]: -0.1"),
            ("500000: 0.85", "500000: 0.75", "misses.agent: miss curve rises"),
            ("500000: 0.85", "500000: 1.85", "misses.agent: hit rate at 500000 rows is 1.85, expected at most 1"),
            ("misses: agent}", "misses: agents}", "misses: 'agents' is not given, only agent, chat"),
            ("sessions: 128\nranks", "sessions: 0\nranks", "sessions: 0"),
            ("sessions: 128\nranks", "sessions: 4\nranks", "measured from 8 to 128 sessions; 4 is below"),
            ("layers: 14", "layers: 1", "layer 1 is given twice"),
            ("layers: 14", "layers: 14-2", "tables[1].layers: '14-2'"),
            ("name: host", "name: nvme0", "device nvme0 is given twice"),
            ("row_bytes: 264", "row_bytes: 9000", "layer 1: row_bytes is 9000, a record must fit one 4 KiB page"),
            ("ranks: 4", "ranks: 4\nranks: 2", "key 'ranks' is given twice"),
            ("ranks: 4", "ranks: 4.5", "ranks: 4.5"),
            ("ranks: 4", "ranks: yes", "ranks: True"),
            ("gpu_rows: 1000000", "gpu_rows: 1e6", "cache.gpu_rows: '1e6'"),
            ("model: DeepSeek-V4.1", "name: DeepSeek-V4.1", "name: unknown key"),
            ("{a_us: 300, b_us: 3.05, c_us: 0.37, ranks_per_unit: 4}", "missing.yaml", "missing.yaml: No such file"),
        ],
    )
    def test_wrong_value_ends_in_one_line_that_says_where(
        self, plan: Any, tmp_path: Path, old: str, new: str, says: str
    ) -> None:
        text = (EXAMPLES / "v41-1-disk.yaml").read_text()
        assert old in text
        file = tmp_path / "wrong.yaml"
        file.write_text(text.replace(old, new, 1))
        code, out, err = plan(file)
        assert (code, out) == (2, "")
        first, *rest = err.splitlines()
        assert first.startswith("slacktier: ")
        assert says in first
        assert all(line.startswith("hint: ") for line in rest)
        assert len(rest) <= 1

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"a: [1, 2", "not YAML"),
            (b"- 1\n- 2\n", "list, expected a mapping of keys"),
            (b"", "NoneType, expected a mapping of keys"),
            (b"\xff\xfe\x00", "not UTF-8 text"),
            (b"a: &a [*a]", "recursive"),
            (b"? [1, 2]\n: 3\n", "a key that is no plain value"),
            (b"model: " + b"x" * (5 << 20), "larger than 4 MiB"),
            (b"devices: {a: 1}\n", "missing"),
        ],
    )
    def test_file_that_is_no_plan_is_refused(self, plan: Any, tmp_path: Path, content: bytes, says: str) -> None:
        file = tmp_path / "odd.yaml"
        file.write_bytes(content)
        code, out, err = plan(file)
        assert (code, out) == (2, "")
        assert says in err

    def test_missing_file_and_missing_argument_are_refused(self, plan: Any, tmp_path: Path) -> None:
        assert "No such file" in plan(tmp_path / "none.yaml")[2]
        code, _, err = plan()
        assert code == 2
        assert "a plan file is missing" in err

    def test_fifo_is_refused_at_once(self, plan: Any, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        code, out, err = plan(tmp_path / "fifo")
        assert (code, out) == (2, "")
        assert "fifo: not a regular file" in err

    def test_other_unit_of_a_key_is_named(self, plan: Any, tmp_path: Path) -> None:
        file = tmp_path / "unit.yaml"
        file.write_text((EXAMPLES / "v41-1-disk.yaml").read_text().replace("a_us: 300", "a_ms: 0.3"))
        assert "hint: did you mean a_us?" in plan(file)[2]

    def test_read_model_file_beside_the_plan_is_used(self, plan: Any, tmp_path: Path) -> None:
        inline = "{a_us: 300, b_us: 3.05, c_us: 0.37, ranks_per_unit: 4}"
        text = (EXAMPLES / "v41-1-disk.yaml").read_text()
        (tmp_path / "plan.yaml").write_text(text.replace(inline, "disk.yaml"))
        model = {"tier": "nvme", "target": "/dev/nvme0n1", "read": yaml.safe_load(inline), "r2": 0.997, "samples": 24}
        (tmp_path / "disk.yaml").write_text(yaml.safe_dump(model))
        found = json.loads(plan(tmp_path / "plan.yaml", "--json")[1])
        assert placed(found) == {1: ("host", 0), 14: ("nvme0", 0)}
        model["tier"] = "tcp"
        (tmp_path / "disk.yaml").write_text(yaml.safe_dump(model))
        assert "was measured on tcp" in plan(tmp_path / "plan.yaml")[2]


class TestCharacterizedCurves:
    """A plan takes the miss curves of `slacktier characterize --json`."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        points = [[0, 2400.0], [1_000_000, 456.0], [4_000_000, 312.0]]
        curves = [
            {"layer_id": layer, "sessions": 128, "policy": policy, "tp": 1, "points": points}
            for layer in (1, 14)
            for policy in ("lru", "clock")
        ]
        (tmp_path / "agent.json").write_text(json.dumps({"sampling": {}, "miss_curves": curves}))
        content = yaml.safe_load((EXAMPLES / "v41-1-disk.yaml").read_text())
        content["misses"] = {"agent": {"file": "agent.json", "layer": 14}}
        return self.write(tmp_path, content)

    @staticmethod
    def write(directory: Path, content: dict[str, Any]) -> Path:
        file = directory / "plan.yaml"
        file.write_text(yaml.safe_dump(content))
        return file

    def test_curves_of_one_rank_become_those_of_four(self, plan: Any, file: Path) -> None:
        layers = json.loads(plan(file, "--json")[1])["layers"]
        assert [layer["pages"] for layer in layers] == [600, 600]
        assert placed({"layers": layers}) == {1: ("host", 0), 14: ("nvme0", 0)}

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ({"file": "none.json"}, "none.json: No such file"),
            ({"file": "plan.yaml"}, "not JSON"),
            ({"file": "agent.json", "layer": 2}, "no miss curve of layer 2"),
            ({"file": "agent.json", "policy": "fifo"}, "no miss curve of policy 'fifo', only clock, lru"),
            ({"file": "agent.json", "layers": 1}, "misses.agent: layers: unknown key"),
        ],
    )
    def test_curves_that_are_not_there_are_refused(
        self, plan: Any, file: Path, spec: dict[str, Any], says: str
    ) -> None:
        content = yaml.safe_load(file.read_text())
        code, out, err = plan(self.write(file.parent, content | {"misses": {"agent": spec}}))
        assert (code, out) == (2, "")
        assert says in err
