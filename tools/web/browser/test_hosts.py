"""The view of two hosts: what a person sees and does there."""

import re

import pytest
from playwright.sync_api import expect
from test_page import findings

EXERCISES = ["lossy-write", "lost-response", "rnr", "timeout", "wrong-key", "lost-ack"]


def facts(page, host):
    """The figures of a host, by their names."""
    lines = page.locator(f".host-{host} .facts > div")
    return dict(line.split("\n") for line in lines.all_inner_texts())


def log_of(page):
    """The log as one text."""
    return page.get_by_role("list", name="Log").inner_text()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def test_a_write_arrives_step_by_step(visit):
    page = visit("#hosts")
    expect(page.get_by_text("No packet is on the wire.")).to_be_visible()
    requester = page.get_by_role("region", name="Requester")
    requester.get_by_label("Bytes").first.fill("2048")
    press(page, "Post the work request")
    press(page, "Step")
    packets = page.locator(".packet")
    expect(packets).to_have_count(1)
    expect(packets.first).to_contain_text("WRITE first 0")
    press(page, "Run")
    assert facts(page, 1)["MSN"] == "1"
    assert facts(page, 1)["Expected PSN"] == "2"
    assert facts(page, 0)["Oldest PSN without acknowledgement"] == "2"
    assert facts(page, 0)["Timer"] == "off"
    completion = requester.get_by_role("group", name="Completions of the requester")
    expect(completion).to_contain_text("2,048")
    expect(page.get_by_text("Nothing is left to do.")).to_be_visible()


def test_a_dropped_packet_is_sent_again_after_a_nak(visit):
    page = visit("#hosts&exercise=lossy-write")
    lost = page.locator(".ladder .step").filter(has_text="lost")
    press(page, "Run")
    expect(page.locator(".ladder .step").filter(has_text="NAK").first).to_be_visible()
    expect(lost.first).to_be_visible()
    log = log_of(page)
    assert "NAK 2" in log
    assert "leaves the requester again, because PSN 2 was missing" in log
    assert facts(page, 1)["Expected PSN"] == "8"
    # Entries of the log name the rule that demands what they tell.
    assert page.locator(".entry.is-nak .rule").count() >= 1


def test_every_exercise_starts_and_ends(visit):
    page = visit("#hosts")
    choice = page.get_by_role("combobox", name="Exercise")
    keys = choice.locator("option").evaluate_all("all => all.map((option) => option.value)")
    assert set(EXERCISES) <= set(keys)
    for key in filter(None, keys):
        choice.select_option(key)
        press(page, "Start")
        expect(page.locator(".hosts .task h3")).not_to_be_empty()
        press(page, "Run")
        expect(page.locator(".hosts .clock")).to_contain_text("Nothing is left to do.")
        expect(page.locator(".hosts > .error")).to_be_empty()
        assert page.locator(".entry").count() > 2, key


def test_a_wrong_key_is_an_error_with_its_reason(visit):
    page = visit("#hosts&exercise=wrong-key")
    press(page, "Run")
    assert facts(page, 0)["State"] == facts(page, 1)["State"] == "ERR"
    wrong = page.locator(".host-0 .is-wrong")
    expect(wrong).to_contain_text("REM_ACCESS_ERR")


def test_a_packet_is_dropped_with_the_keyboard(visit):
    page = visit("#hosts&do=post.0.write.4096*step.3")
    packets = page.locator(".packet")
    expect(packets).to_have_count(3)
    packets.first.focus()
    page.keyboard.press("ArrowDown")
    expect(packets.nth(1)).to_be_focused()
    page.keyboard.press("d")
    expect(page.locator(".recorded li").last).to_have_text(re.compile("Drop: packet 2"))
    # The focus stays among the packets, so that the next key does what its reader expects.
    assert page.evaluate("document.activeElement.classList.contains('packet')")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Step", exact=True)).to_be_focused()
    press(page, "Run")
    assert "NAK 1" in log_of(page)
    page.get_by_text("What you did").click()
    expect(page.get_by_text("Run until nothing is left to do")).to_be_visible()


def test_a_packet_is_delayed_with_the_visible_button(visit):
    page = visit("#hosts&do=post.0.write.4096*step.3")
    page.locator(".packet").first.click()
    page.get_by_label("Delay by (µs)").fill("40")
    press(page, "Delay (L)")
    expect(page.locator(".packet", has_text="delayed")).to_have_count(1)
    press(page, "Run")
    assert "NAK 0" in log_of(page)


def test_back_takes_back_one_step(visit):
    page = visit("#hosts&exercise=lossy-write")
    states = []
    for _ in range(6):
        states.append((facts(page, 0), facts(page, 1), log_of(page)))
        press(page, "Step")
    for state in reversed(states):
        press(page, "Back")
        assert (facts(page, 0), facts(page, 1), log_of(page)) == state


def test_everything_can_be_taken_back(visit):
    page = visit("#hosts&exercise=timeout")
    back = page.get_by_role("button", name="Back", exact=True)
    while back.is_enabled():
        back.click()
    expect(page.get_by_text("Nothing has happened yet.")).to_be_visible()
    page.wait_for_url(re.compile("do=none"))
    page.reload()
    expect(page.get_by_text("Nothing has happened yet.")).to_be_visible()
    press(page, "Start")
    expect(page.locator(".entry")).not_to_have_count(0)


def test_a_link_shows_the_same_state(visit):
    page = visit("#hosts&exercise=lossy-write")
    for _ in range(9):
        press(page, "Step")
    seen = (facts(page, 0), facts(page, 1), log_of(page))
    page.wait_for_url(re.compile(r"drop\.3\*step\.9$"))
    fragment = page.url.split("#")[1]
    other = visit(f"#{fragment}")
    assert (facts(other, 0), facts(other, 1), log_of(other)) == seen


def test_a_wrong_link_says_what_is_wrong(visit):
    page = visit("#hosts&do=post.0.fly.3")
    expect(page.locator(".hosts > .error")).to_have_text("“fly” is not an operation")
    assert facts(page, 0)["State"] == "RTS"


def test_a_send_without_a_receive_waits_for_one(visit):
    page = visit("#hosts&exercise=rnr")
    for _ in range(40):
        if "RNR NAK" in log_of(page) and page.locator(".packet").count() == 0:
            break
        press(page, "Step")
    assert facts(page, 0)["Timer"] != "off"
    press(page, "Post the receive")
    press(page, "Run")
    assert facts(page, 1)["MSN"] == "1"
    expect(page.get_by_role("group", name="Completions of the responder")).to_contain_text("SUCCESS")


def test_settings_start_the_hosts_again(visit):
    page = visit("#hosts")
    page.get_by_text("Settings of the connection").click()
    page.get_by_label("Path MTU (bytes)").select_option("256")
    press(page, "Start again with these settings")
    page.get_by_role("region", name="Requester").get_by_label("Bytes").first.fill("1024")
    press(page, "Post the work request")
    press(page, "Run")
    assert facts(page, 1)["Expected PSN"] == "4"
    page.wait_for_url(re.compile("mtu.256"))


def test_the_capture_is_saved(visit):
    page = visit("#hosts&exercise=lossy-write")
    with page.expect_download() as saved:
        press(page, "Save the capture")
    content = saved.value.path().read_bytes()
    assert saved.value.suggested_filename == "two-hosts.pcapng"
    assert content[:4] == b"\x0a\x0d\x0d\x0a"


def test_packets_of_wire_log_and_ladder_open_in_frame(visit):
    page = visit("#hosts&do=post.0.write.2048*step.2")
    frame, hosts = page.get_by_role("tab", name="Frame"), page.get_by_role("tab", name="Two hosts")
    page.locator(".packet").nth(1).click()
    press(page, "Open in Frame (O)")
    expect(frame).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel", name="Frame")).to_contain_text("RC_RDMA_WRITE_LAST")
    hosts.click()
    page.get_by_role("button", name="Open packet 1 in Frame").click()
    expect(page.get_by_role("tabpanel", name="Frame")).to_contain_text("RC_RDMA_WRITE_FIRST")
    hosts.click()
    page.locator("#panel-hosts .ladder .step").nth(1).click()
    expect(page.get_by_role("tabpanel", name="Frame")).to_contain_text("RC_RDMA_WRITE_LAST")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_hosts_in_use_are_accessible(visit, width, scheme):
    page = visit("#hosts&exercise=lossy-write", scheme=scheme, width=width)
    page.locator(".packet").first.click()
    press(page, "Delay (L)")
    expect(page.locator(".packet .touched").first).to_be_visible()
    assert findings(page) == []
    press(page, "Run")
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_packets_stand_still_if_a_person_wants_less_motion(visit):
    page = visit("#hosts&do=post.0.write.4096*step.3")
    seconds = "getComputedStyle(document.querySelector('.packet')).transitionDuration"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(seconds).startswith("0.3s")
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(seconds) == "0s"
