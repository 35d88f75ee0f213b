"""The lessons: tasks are judged, progress is kept, and solutions are shown only on request."""

import re

from playwright.sync_api import expect
from test_page import findings

# Runs before the page: what a browser does that refuses storage to a page from file://.
NO_STORAGE = """
Object.defineProperty(window, "localStorage", { get() { throw new DOMException("denied", "SecurityError"); } });
"""


def first_lesson(page):
    page.locator(".lesson-list a").first.click()
    expect(page.get_by_role("heading", name="Tasks")).to_be_visible()


def solve_first_task(page):
    """The frame of the first task has a VLAN tag: 14 + 4 + 20 + 8 bytes are in front of the BTH."""
    form = page.locator(".lesson-task").first
    form.get_by_role("textbox").fill("46")
    form.get_by_role("button", name="Check task 1").click()
    return form


def test_the_list_has_every_lesson(visit):
    page = visit("#lessons")
    lessons = page.locator(".lesson-list li")
    assert lessons.count() >= 5
    for text in lessons.all_inner_texts():
        assert re.search(r"about \d+ minutes?, 0 of \d+ tasks? solved", text), text


def test_a_wrong_answer_gets_a_hint(visit):
    page = visit("#lessons")
    first_lesson(page)
    form = page.locator(".lesson-task").first
    press = form.get_by_role("button", name="Check task 1")
    press.click()
    expect(form.get_by_role("status")).to_contain_text("Write or choose an answer first.")
    # Whoever forgets the VLAN tag finds the BTH four bytes too early.
    form.get_by_role("textbox").fill("42")
    press.click()
    expect(form.get_by_role("status")).to_contain_text("Not yet.")
    expect(form.get_by_role("status")).to_contain_text("VLAN tag")
    expect(form.locator("h4 .state")).to_be_hidden()


def test_a_right_answer_is_explained_and_kept(visit):
    page = visit("#lessons")
    first_lesson(page)
    form = solve_first_task(page)
    expect(form.get_by_role("status")).to_contain_text("Right.")
    expect(form.locator(".shows")).to_contain_text("byte 46")
    expect(form.locator("h4 .state")).to_be_visible()
    page.reload()
    expect(page.locator(".lesson-task h4 .state").first).to_be_visible()
    page.get_by_role("link", name="All lessons").click()
    expect(page.locator(".lesson-list li").first).to_contain_text("1 of")
    page.get_by_role("button", name="Forget the progress").click()
    expect(page.locator(".lesson-list li").first).to_contain_text("0 of")


def test_without_storage_the_address_keeps_the_progress(visit):
    page = visit("#lessons")
    page.add_init_script(NO_STORAGE)
    page.reload()
    expect(page.get_by_text("This browser does not keep your progress")).to_be_visible()
    first_lesson(page)
    solve_first_task(page)
    page.wait_for_url(re.compile("done="))
    other = visit("#" + page.url.split("#")[1])
    expect(other.locator(".lesson-task h4 .state").first).to_be_visible()


def test_a_choice_is_judged(visit):
    page = visit("#lessons")
    first_lesson(page)
    form = page.locator(".lesson-task", has=page.get_by_role("radio")).first
    texts = []
    for choice in form.get_by_role("radio").all():
        choice.check()
        form.get_by_role("button", name=re.compile("Check")).click()
        texts.append(form.get_by_role("status").inner_text())
    assert sum("Right." in text for text in texts) == 1
    assert sum("Not yet." in text for text in texts) == len(texts) - 1


def test_a_print_has_one_lesson_without_controls(visit):
    page = visit("#lessons")
    first_lesson(page)
    page.emulate_media(media="print")
    expect(page.locator(".lesson > .prose")).to_be_visible()
    expect(page.locator(".lesson-task").first).to_be_visible()
    for hidden in (".top", ".overview", ".teacher", "nav", ".lesson-task button", ".solution button"):
        expect(page.locator(hidden).first).to_be_hidden()


def test_the_solution_asks_first(visit):
    page = visit("#lessons")
    first_lesson(page)
    page.get_by_role("button", name="Solution…").click()
    expect(page.get_by_text(re.compile(r"Show the solution\? \d+ tasks are still open"))).to_be_visible()
    expect(page.get_by_role("button", name="Not yet")).to_be_focused()
    page.get_by_role("button", name="Not yet").click()
    expect(page.get_by_role("button", name="Solution…")).to_be_focused()
    page.get_by_role("button", name="Solution…").click()
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_role("heading", name="Solution", exact=True)).to_be_visible()
    expect(page.locator(".solution .prose")).not_to_be_empty()


def test_every_lesson_is_whole_and_accessible(visit):
    page = visit("#lessons", width=360)
    for place in range(page.locator(".lesson-list li").count()):
        page.emulate_media(color_scheme=("light", "dark")[place % 2])
        page.locator(".lesson-list a").nth(place).click()
        expect(page.locator(".lesson > .prose")).not_to_be_empty()
        tasks = page.locator(".lesson-task")
        assert tasks.count() >= 1
        for form in tasks.all():
            assert form.get_by_role("textbox").count() + form.get_by_role("radio").count() >= 1
        page.get_by_text("Notes for teachers").click()
        expect(page.locator(".teacher .prose")).not_to_be_empty()
        page.get_by_role("button", name="Solution…").click()
        page.get_by_role("button", name="Show it").click()
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("link", name="All lessons").click()
