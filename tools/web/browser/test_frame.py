"""What a person sees and does in the view of a frame."""

import re

import made
import pytest
from playwright.sync_api import expect

# A SEND with a right ICRC: Ethernet 0, IPv4 14, UDP 34, BTH 42, payload 54, ICRC 70.
SEND = made.frame(psn=5).hex()
LENGTH = len(SEND) // 2
BTH = 42


def open_send(visit, **more):
    page = visit(f"#frame&hex={SEND}", **more)
    expect(page.locator(".headline")).to_contain_text("RC_SEND_ONLY")
    return page


def cell(page, byte):
    return page.locator(".bytes .cell").nth(byte)


def shown_hex(page):
    return page.get_by_label("Frame in hexadecimal digits").input_value()


def field(page, name):
    return page.get_by_role("group", name="Headers and fields").get_by_role("button").filter(
        has=page.get_by_text(name, exact=True)
    )


def test_the_page_begins_with_an_example(visit):
    page = visit()
    assert page.locator(".bytes .cell").count() == len(shown_hex(page)) // 2 > 40
    expect(page.locator(".headline")).to_contain_text(re.compile("bytes"))
    assert page.get_by_label("Examples").locator("option").count() > 6


def test_every_example_is_shown(visit):
    page = visit()
    menu = page.get_by_label("Examples")
    seen = set()
    for place in range(1, menu.locator("option").count()):
        menu.select_option(index=place)
        expect(page.locator("[role=alert]:visible")).to_have_count(0)
        seen.add(page.locator(".headline").inner_text())
    assert len(seen) > 4


def test_headers_have_labels_and_colours(visit):
    page = open_send(visit)
    labels = page.locator(".bytes [role=rowheader]").all_inner_texts()
    assert labels == ["Ethernet", "IPv4", "UDP", "BTH", "payload", "ICRC"]
    colours = [
        page.locator(".bytes .cell").nth(byte).evaluate("cell => getComputedStyle(cell).backgroundColor")
        for byte in (1, 14, 34, 42, 54, 70)
    ]
    assert len(set(colours)) == 6


def test_a_byte_selects_its_field(visit):
    page = open_send(visit)
    cell(page, BTH).click()
    expect(field(page, "OpCode")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".packet")).to_contain_text("decides which headers follow")
    # A byte with several fields: each further click selects the next one.
    cell(page, BTH + 1).click()
    expect(field(page, "SE")).to_have_attribute("aria-pressed", "true")
    cell(page, BTH + 1).click()
    expect(field(page, "M")).to_have_attribute("aria-pressed", "true")


def test_a_field_selects_its_bytes(visit):
    page = open_send(visit)
    field(page, "PSN").click()
    picked = page.locator(".bytes .picked")
    expect(picked).to_have_count(3)
    assert picked.all_inner_texts() == ["00", "00", "05"]


def test_bytes_are_reached_with_the_keyboard(visit):
    page = open_send(visit)
    cell(page, BTH).click()
    page.keyboard.press("ArrowRight")
    expect(cell(page, BTH + 1)).to_be_focused()
    page.keyboard.press("Home")
    expect(cell(page, 0)).to_be_focused()
    page.keyboard.press("End")
    expect(cell(page, LENGTH - 1)).to_be_focused()


def test_a_changed_bit_spoils_the_icrc_and_can_be_undone(visit):
    page = open_send(visit)
    expect(page.locator(".headline [data-state=good]")).to_have_count(1)
    cell(page, BTH + 11).click()
    bits = page.get_by_role("group", name="Bits of the selected byte").get_by_role("button")
    assert bits.all_inner_texts() == list("00000101")
    bits.nth(7).press("Space")
    expect(bits.nth(7)).to_be_focused()
    expect(bits.nth(7)).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".headline [data-state=bad]")).to_have_count(1)
    expect(page.locator(".checks [data-state=bad]")).not_to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    assert shown_hex(page) == SEND
    expect(page.locator(".headline [data-state=good]")).to_have_count(1)
    page.get_by_role("button", name="Redo").click()
    assert shown_hex(page) != SEND


def test_a_masked_byte_does_not_change_the_icrc(visit):
    page = open_send(visit)
    # The TTL, which routers change.
    ttl = cell(page, 22)
    assert "masked" in ttl.get_attribute("class") and "counts as ones" in ttl.get_attribute("aria-label")
    ttl.click()
    page.get_by_role("group", name="Bits of the selected byte").get_by_role("button").nth(0).click()
    expect(page.locator(".headline [data-state=good]")).to_have_count(1)


@pytest.mark.parametrize("repair, state", [(True, "good"), (False, "bad")])
def test_a_field_is_set_with_and_without_repair(visit, repair, state):
    page = open_send(visit)
    field(page, "DestQP").click()
    page.get_by_label("New value").fill("0x1234")
    page.get_by_label("Repair lengths").set_checked(repair)
    page.get_by_role("button", name="Set the field").click()
    expect(field(page, "DestQP")).to_contain_text("0x001234")
    assert shown_hex(page)[94:100] == "001234"
    expect(page.locator(f".headline [data-state={state}]")).to_have_count(1)


def test_a_wrong_value_is_explained_and_changes_nothing(visit):
    page = open_send(visit)
    field(page, "PSN").click()
    for wrong in ("hello", "0x1000000"):
        page.get_by_label("New value").fill(wrong)
        page.get_by_role("button", name="Set the field").click()
        expect(page.get_by_role("alert").filter(has_text=wrong)).to_be_visible()
    assert shown_hex(page) == SEND


def test_digits_that_are_wrong_are_explained(visit):
    page = open_send(visit)
    text = page.get_by_label("Frame in hexadecimal digits")
    text.fill("this is no frame")
    text.press("Control+Enter")
    expect(page.locator("[role=alert]:visible")).to_have_count(1)
    expect(page.locator(".headline")).to_contain_text("RC_SEND_ONLY")
    # Dumps with offsets, as other programs print them, are frames.
    lines = [bytes.fromhex(SEND)[at : at + 16].hex(" ") for at in range(0, LENGTH, 16)]
    text.fill("\n".join(f"{at * 16:04x}  {line}" for at, line in enumerate(lines)))
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("[role=alert]:visible")).to_have_count(0)
    assert shown_hex(page) == SEND


def test_the_answer_of_a_responder_can_be_opened(visit):
    page = open_send(visit)
    answer = page.locator("section", has_text="What a responder answers").last
    expect(answer.locator(".state").first).to_have_text("handled")
    answer.get_by_role("button", name=re.compile("Show this packet")).first.click()
    expect(page.locator(".headline")).to_contain_text("RC_ACKNOWLEDGE")
    # The whole frame is there, so its ICRC can be checked.
    expect(page.locator(".headline [data-state=good]")).to_have_count(1)


def test_a_frame_is_built_from_fields(visit):
    page = open_send(visit)
    page.get_by_text("Build a frame from fields").click()
    page.get_by_label("Opcode").select_option("10")
    page.get_by_label("Destination queue pair").fill("0x77")
    page.get_by_label("RETH: R_Key").fill("0x1234")
    page.get_by_label("Payload in hexadecimal digits").fill("00 01 02 03")
    page.get_by_role("button", name="Build the frame").click()
    expect(page.locator(".headline")).to_contain_text("RC_RDMA_WRITE_ONLY")
    expect(page.locator(".headline [data-state=good]")).to_have_count(1)
    expect(field(page, "R_Key")).to_contain_text("0x00001234")
    page.get_by_label("Source address").fill("somewhere")
    page.get_by_role("button", name="Build the frame").click()
    expect(page.get_by_role("alert").filter(has_text="somewhere")).to_be_visible()


def test_a_frame_is_saved_and_copied(visit):
    page = open_send(visit)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download as pcap").click()
    contents = saved.value.path().read_bytes()
    assert bytes.fromhex(SEND) in contents
    for name, part in [("hex dump", "0200 c000"), ("Rust", "0x02, 0x00"), ("scapy", "02"), ("command", "roce explain")]:
        page.get_by_role("button", name=re.compile(f"Copy .*{name}")).click()
        expect(page.locator("#said")).to_have_text("Copied.")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert part in copied.replace("\\x", ""), name


def test_a_link_shows_the_frame_and_the_byte(visit):
    page = open_send(visit)
    cell(page, BTH + 9).click()
    page.get_by_role("button", name="Copy the link").click()
    expect(page.locator("#said")).to_have_text("Copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    other = visit("#" + link.split("#")[1])
    assert shown_hex(other) == SEND
    expect(cell(other, BTH + 9)).to_have_attribute("aria-selected", "true")
