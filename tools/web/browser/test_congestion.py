"""Congestion: simulations run in the page and give the hashes of the command."""

import re

import pytest
from places import ROOT
from playwright.sync_api import expect
from test_page import findings

LONG_MS = 120_000
SHORT = """name = "short"
stop = "2ms"
open_ended = true

[topology]
kind = "star"
hosts = 3
rate = "10Gbps"

[host]
congestion = "dcqcn:paper"

[[flows]]
kind = "pair"
from = "h0"
to = "h2"
bytes = "100MB"

[[flows]]
kind = "pair"
from = "h1"
to = "h2"
bytes = "100MB"
"""


def write(page, text):
    """Replaces the text of the scenario."""
    page.get_by_text("Edit the scenario").click()
    page.get_by_label("Text of the scenario (TOML)").fill(text)


def run(page, column=0):
    page.locator(".run").nth(column).get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run").nth(column)).to_have_attribute("data-state", "ended", timeout=LONG_MS)


def hash_of(page, column=0):
    row = page.locator(".run").nth(column).get_by_role("row", name=re.compile("trace hash"))
    return row.get_by_role("cell").last.inner_text()


def test_a_run_draws_charts_and_ends_with_a_hash(visit):
    page = visit("#congestion")
    write(page, SHORT)
    run(page)
    for title in ("Goodput of the flows", "Rate that congestion control allows", "Queues of the ports"):
        chart = page.locator(".chart", has_text=title)
        expect(chart).to_be_visible()
        assert len(chart.locator(".wide svg path.series").first.get_attribute("d")) > 100
        words = chart.get_by_role("img").get_attribute("aria-label")
        assert re.search(r"from .+ to .+, at the end .+", words), words
    assert re.fullmatch(r"[0-9a-f]{16}", hash_of(page))
    flows = page.get_by_role("group", name="Table of flows").get_by_role("row")
    expect(flows).to_have_count(3)
    assert page.get_by_role("group", name="Table of ports").get_by_role("row").count() > 1


def test_a_chart_has_a_table_behind_it(visit):
    page = visit("#congestion")
    write(page, SHORT)
    run(page)
    chart = page.locator(".chart", has_text="Goodput of the flows")
    chart.get_by_text("as a table").click()
    rows = chart.get_by_role("row")
    assert rows.count() > 5
    expect(rows.nth(1)).to_contain_text("b/s")


def test_the_same_settings_give_the_same_hash_and_others_another(visit):
    page = visit("#congestion")
    write(page, SHORT)
    run(page)
    first = hash_of(page)
    run(page)
    assert hash_of(page) == first
    page.get_by_label("rpg_ai_rate", exact=True).fill("400")
    page.get_by_label("rpg_ai_rate", exact=True).press("Tab")
    expect(page.get_by_text("The settings have changed since this run began.")).to_be_visible()
    run(page)
    assert hash_of(page) != first


def test_the_hash_is_that_of_the_command(visit):
    # The tutorial has the output of `roce sim two-to-one`, and a test of the tutorial runs the command.
    tutorial = (ROOT / "docs" / "tutorials" / "first-hour.md").read_text()
    page = visit("#congestion&scenario=two-to-one")
    run(page)
    assert re.search(r"trace hash +" + hash_of(page), tutorial), hash_of(page)
    expect(page.get_by_label("Command that prints the same trace hash")).to_have_text("roce sim two-to-one")


def test_a_slider_changes_the_command(visit):
    page = visit("#congestion")
    command = page.get_by_label("Equivalent command")
    expect(command).to_have_text("roce sim two-to-one")
    page.get_by_label("rpg_ai_rate, slider").focus()
    page.keyboard.press("End")
    expect(command).to_have_text("roce sim two-to-one --set host.congestion=dcqcn:paper,rpg_ai_rate=1000000")
    page.get_by_role("button", name="Reset rpg_ai_rate").click()
    expect(command).to_have_text("roce sim two-to-one")
    page.get_by_role("combobox", name="Algorithm").select_option("swift")
    expect(command).to_have_text("roce sim two-to-one --set host.congestion=swift")
    expect(page.get_by_label("base_target", exact=True)).to_have_value("25")
    page.get_by_text("Other settings").click()
    page.get_by_label("One KEY=VALUE in each line").fill("seed=2\nswitch.marking.kmax=50KB")
    expect(command).to_have_text(
        "roce sim two-to-one --set host.congestion=swift --set seed=2 --set switch.marking.kmax=50KB"
    )


def test_a_preset_puts_its_values_into_the_sliders(visit):
    page = visit("#congestion&scenario=two-to-one")
    number = page.get_by_label("rpg_ai_rate", exact=True)
    slider = page.get_by_label("rpg_ai_rate, slider")
    # The scenario names the preset `paper`.
    expect(number).to_have_value("40")
    positions = [slider.input_value()]
    for algorithm, value in [("dcqcn:hpcc", "20"), ("dcqcn", "5")]:
        page.get_by_role("combobox", name="Algorithm").select_option(algorithm)
        expect(number).to_have_value(value)
        positions.append(slider.input_value())
    assert positions == sorted(positions, key=int, reverse=True) and len(set(positions)) == 3, positions
    page.get_by_role("combobox", name="Algorithm").select_option("dcqcn:hpcc")
    expect(page.get_by_text("20 (preset hpcc)", exact=True)).to_be_visible()
    # A value that a person sets is written after the preset, and Reset brings that of the preset back.
    number.fill("400")
    number.press("Tab")
    command = page.get_by_label("Equivalent command")
    expect(command).to_have_text("roce sim two-to-one --set host.congestion=dcqcn:hpcc,rpg_ai_rate=400")
    page.get_by_role("button", name="Reset rpg_ai_rate").click()
    expect(number).to_have_value("20")
    expect(command).to_have_text("roce sim two-to-one --set host.congestion=dcqcn:hpcc")


def test_an_error_names_its_line(visit):
    page = visit("#congestion")
    write(page, SHORT.replace("rate =", "speed ="))
    line = SHORT.splitlines().index('rate = "10Gbps"') + 1
    expect(page.locator(".congestion > .error")).to_contain_text(f"line {line}")
    text = page.get_by_label("Text of the scenario (TOML)")
    expect(text).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Go to the line").click()
    selected = text.evaluate("node => node.value.slice(node.selectionStart, node.selectionEnd)")
    assert selected == 'speed = "10Gbps"'
    page.get_by_role("button", name="Restore the shipped text").click()
    expect(page.locator(".congestion > .error")).to_be_empty()


def test_two_runs_are_compared_beside_each_other(visit):
    page = visit("#congestion")
    write(page, SHORT)
    run(page)
    first = hash_of(page)
    page.get_by_role("button", name="Keep this run beside the next one").click()
    page.get_by_role("combobox", name="Algorithm").select_option("none")
    run(page, column=1)
    assert hash_of(page, 0) == first
    assert hash_of(page, 1) != first
    commands = page.get_by_label("Command that prints the same trace hash").all_inner_texts()
    assert commands == ["roce sim scenario.toml", "roce sim scenario.toml --set host.congestion=none"]
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".run")).to_have_count(1)


def test_the_page_stays_usable_during_a_run(visit):
    page = visit("#congestion")
    run_button = page.locator(".run").get_by_role("button", name="Run", exact=True)
    run_button.click()
    status = page.locator(".run-status")
    expect(status).to_contain_text("Running.")
    page.get_by_role("button", name="Pause").click()
    expect(status).to_contain_text("Paused.")
    stopped = status.inner_text()
    page.wait_for_timeout(300)
    assert status.inner_text() == stopped
    page.get_by_role("button", name="Go on").click()
    expect(status).not_to_have_text(stopped)
    # Another view ends nothing, but the simulation waits.
    page.get_by_role("tab", name="Lessons").click()
    page.get_by_role("tab", name="Congestion").click()
    expect(status).to_contain_text("Paused.")


def test_a_link_has_the_settings(visit):
    page = visit("#congestion")
    write(page, SHORT)
    page.get_by_role("combobox", name="Algorithm").select_option("dctcp")
    page.wait_for_url(re.compile("algorithm=dctcp"))
    other = visit("#" + page.url.split("#")[1])
    expect(other.get_by_label("Text of the scenario (TOML)")).to_have_value(SHORT)
    expect(other.get_by_role("combobox", name="Algorithm")).to_have_value("dctcp")
    expect(other.get_by_label("Equivalent command")).to_have_text(
        "roce sim scenario.toml --set host.congestion=dctcp"
    )


def test_every_shipped_scenario_is_offered(visit):
    page = visit("#congestion")
    names = page.get_by_role("combobox", name="Shipped scenario").locator("option").all_inner_texts()
    assert {"two-to-one", "incast", "pfc-deadlock"} <= set(names)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_a_run_is_accessible(visit, width, scheme):
    page = visit("#congestion", scheme=scheme, width=width)
    write(page, SHORT)
    run(page)
    page.get_by_role("button", name="Keep this run beside the next one").click()
    run(page, column=1)
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
