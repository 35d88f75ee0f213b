"""What a student does in the page during docs/lessons/lab.md, steps 4 and 8."""

import re

from places import ROOT
from playwright.sync_api import expect
from test_capture import LINES, open_file, open_loss
from test_frame import cell, field

TTL, PAYLOAD = 22, 70


def open_step_1(visit):
    """Opens the first packet of a WRITE, and takes it to the view of a frame."""
    page = open_loss(visit)
    page.locator(LINES).first.click()
    page.get_by_role("button", name="Change it in the view Frame").click()
    expect(page.locator("#panel-frame .headline")).to_contain_text("RC_RDMA_WRITE_FIRST")
    return page


def set_field(page, name, value, repair):
    field(page, name).click()
    page.get_by_label("New value").fill(value)
    page.get_by_label("Repair lengths").set_checked(repair)
    page.get_by_role("button", name="Set the field").click()


def wrong_checks(page):
    return page.locator("#panel-frame .checks li").filter(has=page.locator("[data-state=bad]"))


def test_another_ttl_leaves_the_icrc_right_and_spoils_the_checksum_of_ip(visit):
    page = open_step_1(visit)
    set_field(page, "TTL", "63", repair=False)
    expect(page.locator("#panel-frame .headline [data-state=good]")).to_have_count(1)
    print(wrong_checks(page).all_inner_texts())
    assert any("checksum" in text for text in wrong_checks(page).all_inner_texts())
    page.get_by_role("button", name="Undo").click()
    expect(wrong_checks(page)).to_have_count(0)


def test_another_byte_of_the_payload_has_another_icrc_which_the_page_computes(visit):
    page = open_step_1(visit)
    cell(page, PAYLOAD).click()
    page.get_by_role("group", name="Bits of the selected byte").get_by_role("button").first.click()
    expect(wrong_checks(page)).to_have_count(1)
    expect(wrong_checks(page)).to_contain_text(re.compile("ICRC.*[0-9a-f]{2}"))


def test_a_packet_for_another_queue_pair_is_answered_by_one_that_it_fits(visit):
    page = open_step_1(visit)
    set_field(page, "DestQP", "0x777777", repair=True)
    expect(page.locator("#panel-frame .headline [data-state=good]")).to_have_count(1)
    answer = page.locator("section", has_text="What a responder answers").last
    expect(answer.locator(".state").first).to_have_text("handled")


def test_every_capture_with_a_fault_opens(visit):
    page = visit("#capture")
    paths = sorted((ROOT / "docs" / "lessons" / "captures").glob("*.pcapng"))
    assert len(paths) >= 20
    for path in paths:
        open_file(page, path)
        expect(page.get_by_text(re.compile(f"^{re.escape(path.name)}: "))).to_be_visible()
        page.get_by_role("button", name="Connections").click()
        expect(page.get_by_role("heading", name="Conclusion")).to_be_visible()
        expect(page.locator(".ladder .step").nth(3)).to_be_visible()
        page.get_by_role("button", name="Packets", exact=True).click()
