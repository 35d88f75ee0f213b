"""What a person sees and does in the view of a capture."""

import base64
import re
import time

import made
from places import PCAPS
from playwright.sync_api import expect

LOSS = PCAPS / "rc-loss.pcapng"
LINES = ".list .line:not(.head)"


def open_file(page, path):
    page.locator("input[type=file]").set_input_files(path)
    # The module of a quick build is slow, and the machine can be busy.
    expect(page.locator(LINES).first).to_be_visible(timeout=60_000)


def open_loss(visit, **more):
    page = visit("#capture", **more)
    open_file(page, LOSS)
    return page


def set_filter(page, text):
    page.get_by_label("Filter").fill(text)


def test_packets_are_listed(visit):
    page = open_loss(visit)
    expect(page.get_by_text("rc-loss.pcapng: 17 packets, 17 RoCE")).to_be_visible()
    expect(page.locator(LINES)).to_have_count(17)
    gap = page.locator(LINES).nth(2)
    for text in ("192.0.2.1", "192.0.2.2", "RC_RDMA_WRITE_MIDDLE", "9778557", "gap"):
        expect(gap).to_contain_text(text)


def test_a_file_is_dropped(visit):
    page = visit("#capture")
    contents = base64.b64encode(LOSS.read_bytes()).decode()
    page.evaluate(
        """text => {
            const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], "dropped.pcapng"));
            document.querySelector(".drop").dispatchEvent(
                new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }""",
        contents,
    )
    expect(page.get_by_text("dropped.pcapng: 17 packets")).to_be_visible()


def test_a_file_that_is_no_capture_is_explained(visit, tmp_path):
    page = open_loss(visit)
    wrong = tmp_path / "wrong.pcapng"
    wrong.write_bytes(b"this is not a capture, but a sentence that is long enough")
    page.locator("input[type=file]").set_input_files(wrong)
    expect(page.locator("[role=alert]:visible")).to_have_count(1)
    # The capture before stays open.
    expect(page.locator(LINES)).to_have_count(17)
    expect(page.get_by_text("rc-loss.pcapng: 17 packets")).to_be_visible()


def test_a_filter_selects_packets(visit):
    page = open_loss(visit)
    set_filter(page, "opcode=ACK")
    expect(page.locator(LINES)).to_have_count(3)
    expect(page.get_by_text("3 of 17 packets")).to_be_visible()
    page.get_by_role("button", name="mark=gap").click()
    expect(page.locator(LINES)).to_have_count(1)
    set_filter(page, "")
    expect(page.locator(LINES)).to_have_count(17)


def test_a_wrong_filter_is_explained(visit):
    page = open_loss(visit)
    set_filter(page, "colour=blue")
    expect(page.get_by_role("alert").filter(has_text="colour")).to_be_visible()
    expect(page.get_by_label("Filter")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(LINES)).to_have_count(17)
    set_filter(page, "")
    expect(page.locator("[role=alert]:visible")).to_have_count(0)


def test_a_packet_is_shown_as_bytes_and_as_a_tree(visit):
    page = open_loss(visit)
    page.locator(LINES).nth(7).click()
    panel = page.get_by_role("tabpanel", name="Capture")
    expect(panel.get_by_role("heading", name="Packet 8: RC_ACKNOWLEDGE")).to_be_visible()
    expect(panel.locator(".bytes [role=rowheader]").filter(has_text="AETH")).to_be_visible()
    panel.locator(".tree .field").filter(has=page.get_by_text("PSN", exact=True)).click()
    expect(panel.locator(".bytes .picked")).to_have_count(3)
    panel.get_by_role("button", name="Next").click()
    expect(panel.get_by_role("heading", name="Packet 9:")).to_be_visible()


def test_the_list_is_used_with_the_keyboard(visit):
    page = open_loss(visit)
    page.get_by_role("grid", name="Packets").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="Packet 2:")).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_role("heading", name="Packet 17:")).to_be_visible()
    active = page.get_by_role("grid", name="Packets").get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_have_attribute("aria-selected", "true")


def test_a_packet_goes_to_the_view_of_a_frame(visit):
    page = open_loss(visit)
    page.locator(LINES).nth(7).click()
    page.get_by_role("button", name="Change it in the view Frame").click()
    expect(page.locator("#panel-frame .headline")).to_contain_text("RC_ACKNOWLEDGE")
    page.go_back()
    expect(page.get_by_role("heading", name="Packet 8:")).to_be_visible()


def test_connections_have_verdicts(visit):
    page = open_loss(visit)
    page.get_by_role("button", name="Connections").click()
    panel = page.get_by_role("tabpanel", name="Capture")
    expect(panel.get_by_text("1 packet lost, 6 packets sent again, all recovered").first).to_be_visible()
    expect(panel.locator('.verdicts [data-key="naks"]')).to_contain_text("one NAK per gap")
    expect(panel.locator("table").first).to_contain_text("14 passed")
    # A verdict leads to the packet that proves it.
    panel.locator('[data-key="causes"]').get_by_role("button", name="packet 9").click()
    expect(page.get_by_role("heading", name="Packet 9:")).to_be_visible()
    page.go_back()
    expect(panel.locator('.verdicts [data-key="naks"]')).to_be_visible()


def test_a_ladder_shows_a_loss(visit):
    page = open_loss(visit)
    page.get_by_role("button", name="Connections").click()
    steps = page.locator(".ladder .step")
    expect(steps).to_have_count(18)
    lost = steps.nth(2)
    assert "lost" in lost.get_attribute("aria-label") and "bad" in lost.get_attribute("class")
    nak = steps.nth(8)
    assert "NAK" in nak.get_attribute("aria-label") and "bad" in nak.get_attribute("class")
    expect(page.locator(".ladder .step.again")).to_have_count(6)
    dash = page.locator(".ladder .step.again .shaft").first
    assert dash.evaluate("path => getComputedStyle(path).strokeDasharray") != "none"
    # The lost packet ends before the rail of its receiver.
    whole, short = (steps.nth(at).locator(".shaft").bounding_box()["width"] for at in (0, 2))
    assert short < 0.7 * whole
    # A ladder of 18 rows fits a slide.
    assert page.locator(".ladder svg").bounding_box()["height"] < 600
    steps.nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Packet 2:")).to_be_visible()


def test_a_ladder_shows_an_rnr_nak(visit):
    page = visit("#capture")
    open_file(page, PCAPS / "rc-rnr.pcapng")
    page.get_by_role("button", name="Connections").click()
    expect(page.locator(".ladder .step").filter(has_text=re.compile("RNR NAK")).first).to_be_visible()


def test_a_ladder_shows_how_long_a_requester_waited(visit):
    page = visit("#capture")
    open_file(page, PCAPS / "rxe" / "rc-pingpong-3001-multipkt.pcap.gz")
    page.get_by_role("button", name="Connections").click()
    wait = page.locator(".ladder .gap").first
    expect(wait).to_contain_text("timeout: 18.1")
    expect(wait).to_have_attribute("aria-label", re.compile("waited 18.1. ms.*packet 9"))
    assert wait.locator(".rail.wait").count() == 1


def test_traffic_is_drawn_with_a_table_behind_it(visit):
    page = open_loss(visit)
    page.get_by_role("button", name="Connections").click()
    chart = page.locator("figure", has_text="Bytes over time")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile("Bytes over time.*from 192.0.2.1"))
    expect(chart.get_by_role("img").locator("path.series")).to_have_count(2)
    chart.get_by_text("as a table").click()
    assert chart.locator("tbody tr").count() > 10


def test_a_link_preserves_the_view_of_the_same_file(visit):
    page = open_loss(visit)
    set_filter(page, "opcode=ACK")
    expect(page.locator(LINES)).to_have_count(3)
    page.locator(LINES).nth(1).click()
    expect(page.get_by_role("heading", name="Packet 15:")).to_be_visible()
    expect(page).to_have_url(re.compile("packet=15"))
    fragment = page.evaluate("location.hash")
    other = visit(fragment)
    expect(other.get_by_text("This link shows a part of rc-loss.pcapng")).to_be_visible()
    open_file(other, LOSS)
    expect(other.locator(LINES)).to_have_count(3)
    expect(other.get_by_role("heading", name="Packet 15:")).to_be_visible()
    expect(other.locator(LINES).nth(1)).to_have_attribute("aria-selected", "true")


def test_all_captures_of_the_repository_open(visit):
    page = visit("#capture")
    paths = sorted(PCAPS.glob("*.pcapng"))
    assert len(paths) > 10
    for path in paths:
        open_file(page, path)
        expect(page.get_by_text(re.compile(f"^{re.escape(path.name)}: "))).to_be_visible()
        page.locator(LINES).first.click()
        expect(page.get_by_role("heading", name="Packet 1:")).to_be_visible()
        page.get_by_role("button", name="Connections").click()
        expect(page.get_by_role("heading", name="Conclusion")).to_be_visible()
        expect(page.locator("[role=alert]:visible")).to_have_count(0)
        page.get_by_role("button", name="Packets", exact=True).click()


def processor_seconds(session):
    """Returns the processor time of the page's main thread, which a busy machine does not change."""
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


def test_a_long_capture_opens_soon_and_scrolls(visit, long_capture):
    page = visit("#capture")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, started = processor_seconds(session), time.monotonic()
    open_file(page, long_capture)
    expect(page.get_by_text("100,000 packets", exact=True)).to_be_visible()
    spent, waited = processor_seconds(session) - before, time.monotonic() - started
    print(f"opened in {waited:.2f} s, {spent:.2f} s of processor time")
    assert spent < 3
    # Only the visible lines are in the document, wherever the reader scrolls.
    scroll = page.locator(".list .scroll")
    before = processor_seconds(session)
    for part in (0.25, 0.5, 0.75, 1):
        scroll.evaluate("(node, part) => { node.scrollTop = part * node.scrollHeight; }", part)
        number = round(part * made.LONG)
        expect(page.locator(LINES).filter(has_text=re.compile(rf"^{number}")).first).to_be_visible()
        assert page.locator(LINES).count() < 80
    spent = processor_seconds(session) - before
    print(f"four screens in {spent:.2f} s of processor time")
    assert spent < 1
    set_filter(page, "icrc=bad")
    expect(page.locator(LINES)).to_have_count(1)
    expect(page.locator(LINES).first).to_contain_text(str(made.WRONG))


def test_folds_of_a_ladder_open(visit, tmp_path):
    page = visit("#capture")
    path = tmp_path / "short.pcap"
    path.write_bytes(made.capture(300, wrong=150))
    open_file(page, path)
    page.get_by_role("button", name="Connections").click()
    fold = page.locator(".ladder [data-fold]")
    expect(fold.first).to_be_visible()
    assert page.locator(".ladder .step").count() < 60
    fold.first.click()
    expect(page.locator(".ladder .step")).to_have_count(301)
    expect(fold).to_have_count(0)


def test_a_fold_that_is_too_long_is_explained(visit, tmp_path):
    page = visit("#capture")
    path = tmp_path / "longer.pcap"
    path.write_bytes(made.capture(3000))
    open_file(page, path)
    page.get_by_role("button", name="Connections").click()
    page.locator(".ladder [data-fold]").first.click()
    expect(page.locator("#said")).to_contain_text("at most 2,000 rows")
