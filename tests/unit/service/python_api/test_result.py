"""Answers as records, data frames, text and HTML."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import shardtune as st
from shardtune.service.mcp.schemas.figures import BAND_95, Figure
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.rows import AnswerRow, RowTable, cells

HOSTILE = """<script>alert(1)</script><img src=x onerror="alert('2')"> & "quoted" """
FIGURE = Figure(
    value=10170.4, unit="tokens/s/GPU", basis="measured", low=9800, high=10500, band=BAND_95, source=HOSTILE
)
PREDICTED = FIGURE.model_copy(update={"basis": "predicted", "low": None, "high": None, "band": None})
RESULT = Result(
    HOSTILE,
    (
        RowTable(
            HOSTILE,
            HOSTILE,
            [AnswerRow({"name": HOSTILE, **cells(speed=FIGURE, expected=PREDICTED, empty=None)})],
            HOSTILE,
        ),
        RowTable("nothing", "Nothing", []),
    ),
    HOSTILE,
    (HOSTILE,),
)


class Elements(HTMLParser):
    """Elements of a document with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_html_shows_foreign_text_as_text_and_loads_nothing():
    html = RESULT._repr_html_()
    shown = Elements(html)
    assert shown.tags <= {
        "div",
        "style",
        "p",
        "b",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "small",
        "ul",
        "li",
    }
    assert shown.attributes <= {"class", "title"} and shown.texts.count(HOSTILE) >= 4
    style = html.partition("</style>")[0]
    assert not re.search(r"https?:|url\(|@import", style)


def test_html_uses_no_colour_that_a_theme_could_hide():
    style = RESULT._repr_html_().partition("</style>")[0]
    assert not re.search(r"#[0-9a-f]{3,8}\b|\brgba?\(|: ?(white|black)|background: (?!none)", style)


def test_each_figure_says_its_basis_its_unit_and_its_band():
    texts = "|".join(Elements(RESULT._repr_html_()).texts)
    assert "10,170 tokens/s/GPU|measured|, 9,800 to 10,500" in texts and "10,170 tokens/s/GPU|predicted|" in texts
    assert "Range of speed: 95 % interval." in texts
    assert "10,170 tokens/s/GPU (9,800 to 10,500), measured" in repr(RESULT)


def test_a_terminal_shows_no_control_characters_of_a_name():
    assert "\x1b" not in repr(Result("name \x1b[31m", ()))


def test_records_are_flat():
    (record,) = RESULT.records()
    assert record == {
        "name": HOSTILE,
        "speed": 10170.4, "speed_low": 9800.0, "speed_high": 10500.0, "speed_unit": "tokens/s/GPU", "speed_basis": "measured",
        "expected": 10170.4, "expected_low": None, "expected_high": None, "expected_unit": "tokens/s/GPU", "expected_basis": "predicted",
        "empty": None,
    }  # fmt: skip
    assert RESULT.records("nothing") == []
    with pytest.raises(ValueError, match=r"table \('fastest'\) must be one of .*, nothing"):
        RESULT.records("fastest")


def test_knobs_of_a_configuration_are_in_its_record():
    record = st.predict("gpt2", "2xh100", top=1).records()[0]
    assert record["config.backend"] in ("ddp", "zero", "fsdp1", "fsdp2") and record["config.micro_batch"] >= 1
    assert all(value is None or isinstance(value, str | int | float) for value in record.values())


def test_a_data_frame_has_a_column_for_each_key():
    pandas = pytest.importorskip("pandas")
    predictions = st.predict("gpt2", "2xh100", top=3)
    frame = predictions.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(predictions.records())
    assert frame["speed"].dtype == float and set(frame["speed_basis"]) == {"predicted"}


def test_without_pandas_the_error_names_the_package():
    code = (
        "import sys; sys.modules['pandas'] = None\nimport shardtune as st\n"
        "try:\n    st.predict('gpt2', '2xh100', top=1).to_pandas()\nexcept st.MissingPackage as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "to_pandas needs the package pandas, which is not installed; run `pip install pandas`" in ran.stdout
