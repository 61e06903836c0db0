"""The page /catalog: versions, instances, pins and quarantine, rendered here; its script asks for it anew."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

GOOD = ("current",)
BAD = ("refused", "rolled_back", "quarantined", "unreachable")
NONE = "\N{EN DASH}"


def styled(page: str) -> str:
    """A page with the style that all of them share."""
    return page.replace("{{page.css}}", _file("page.css"))


def catalog_page(catalog: Mapping[str, Any]) -> str:
    """HTML of ``ServiceStatus.catalog``."""
    here, fleet = catalog["here"], catalog["fleet"] or {}
    tables = {
        "Versions": _versions(fleet.get("versions", ()), here),
        "Instances": _instances(fleet.get("instances", ())),
        "Pins": _pins(fleet.get("pins", {})),
        "Quarantine": _quarantine(fleet, catalog["instance"], here),
    }
    nothing = f'<p class="label">{"none" if "versions" in fleet else "Redis was not read yet"}</p>'
    parts = [
        _notice(fleet.get("error")),
        _section("This instance", _own(catalog["instance"], here)),
        *(_section(title, table or nothing) for title, table in tables.items()),
    ]
    return styled(_file("catalog.html")).replace("{{main}}", "\n".join(parts))


def _own(instance: str, here: Mapping[str, Any]) -> str:
    refusal = here["last_refusal"]
    said = f"{refusal['version'] or 'pointer'}: {refusal['reason']}, {refusal['message']}" if refusal else "none"
    resident = ", ".join(f"{version} ({_mebibytes(size)})" for version, size in here["resident"].items())
    pairs = {
        "Instance": escape(instance),
        "State": _mark(here["state"] or "starting"),
        "Serves": escape(here["active"] or "none yet") + (" (pinned)" if here.get("pinned") else ""),
        "Resident": escape(resident or "none"),
        "Last confirmed": NONE if here["staleness_s"] is None else f"{here['staleness_s']:.0f} s ago",
        "Last refusal": escape(said),
    }
    rows = "".join(f"<dt>{term}</dt><dd>{value}</dd>" for term, value in pairs.items())
    return f'<dl id="own">{rows}</dl>'


def _versions(versions: Iterable[Mapping[str, Any]], here: Mapping[str, Any]) -> str:
    def notes(version: Mapping[str, Any]) -> str:
        found = [f"label {version['label']}"] if version["label"] else []
        found += ["changes " + " \N{LEFTWARDS ARROW} ".join(version["chain"])] if version["chain"] else []
        found += [f"pinned by {group}" for group in version["pinned_by"]]
        canaries = version["canaries"]
        found += [f"{canaries} {'canary' if canaries == 1 else 'canaries'}"] if canaries else []
        found += ["signed"] if version["signed"] else []
        found += [f"found bad by {', '.join(version['condemned_by'])}"] if version["condemned_by"] else []
        return "; ".join(found)

    def standing(version: Mapping[str, Any]) -> str:
        words = {"current": "current", "rollback": "rollback goes here", "quarantined": "quarantined"}
        return _mark(version["standing"], words[version["standing"]]) if version["standing"] else NONE

    rows = [
        (
            version["version"],
            escape(version["model"]),
            standing(version),
            _number(version["items"]),
            _mebibytes(version["bytes"]),
            _mebibytes(here["resident"].get(version["version"])),
            f"{version['active_on']} / {version['resident_on']}",
            escape(notes(version)),
        )
        for version in versions
    ]
    heads = ("Version", "Model", "Standing", "Items", "Size", "Resident here", "Serve it / hold it", "Notes")
    return _table("versions", heads, rows, names=2, words=1)


def _instances(instances: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (
            each["instance"],
            escape(each["model"]),
            escape(each["version"] or "none") + (" (pinned)" if each["pinned"] else ""),
            _mark(each["state"]),
            str(each["generation"] or NONE),
            f"{each['staleness_s']:.0f} s",
            f"{each['age_s']:.0f} s",
            escape("; ".join(troubles(each))),
        )
        for each in instances
    ]
    heads = ("Instance", "Model", "Serves", "State", "Generation", "Stale", "Said", "Why")
    return _table("instances", heads, rows, names=3, words=1)


def _pins(pins: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (group, escape(pin["serve"] or "what is current"), escape(", ".join(pin["keep"]) or "nothing else"))
        for group, pin in pins.items()
    ]
    return _table("pins", ("Group", "Serves", "Keeps"), rows, names=1, words=2)


def _quarantine(fleet: Mapping[str, Any], instance: str, here: Mapping[str, Any]) -> str:
    rows = [
        (version, "the fleet, by " + escape(found["by"]), escape(f"{found['reason']}: {found['message']}"))
        for version, found in fleet.get("quarantine", {}).items()
    ]
    found_by = {each["instance"]: each["condemned"] for each in fleet.get("instances", ())}
    for name, condemned in {**found_by, instance: here["condemned"]}.items():
        rows += [(version, escape(name), escape(why)) for version, why in condemned.items()]
    return _table("quarantine", ("Version", "Of", "Why"), rows, names=1, words=1)


def troubles(instance: Mapping[str, Any]) -> list[str]:
    """What is wrong with an instance, each thing once: its error is mostly why it condemned a version."""
    condemned, kept = instance["condemned"], instance["kept"]
    error = instance["error"]
    found = [error] if error and not any(error.endswith(why) for why in condemned.values()) else []
    found += [f"{version}: {why}" for version, why in condemned.items()]
    return found + [f"{version}: {why}" for version, why in kept.items() if why != "resident"]


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, words: int) -> str:
    """``rows``: a version or a name as text, then HTML. The first ``names`` columns after it, and the last ``words``,
    stand at the left. Without rows there is none.
    """
    if not rows:
        return ""

    def kind(column: int) -> str:
        if column >= len(heads) - words:
            return ' class="words"'
        return ' class="name"' if column <= names else ""

    head = "".join(f'<th scope="col"{kind(column)}>{text}</th>' for column, text in enumerate(heads))
    body = ""
    for first, *rest in rows:
        cells = "".join(f"<td{kind(column)}>{cell}</td>" for column, cell in enumerate(rest, 1))
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    return f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _section(title: str, content: str) -> str:
    anchor = "h-" + title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{title}</h2>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{anchor}">{content}</div></section>'
    )


def _notice(error: str | None) -> str:
    return f'<p id="notice" role="status"{"" if error else " hidden"}>{escape(error or "")}</p>'


def _mark(state: str, words: str | None = None) -> str:
    kind = " good" if state in GOOD else " bad" if state in BAD else ""
    return f'<span class="mark{kind}">{escape(words or state.replace("_", " "))}</span>'


def _number(value: int) -> str:
    return f"{value:,}"


def _mebibytes(size: int | None) -> str:
    return NONE if size is None else f"{size / 2**20:,.1f} MiB"


def _file(name: str) -> str:
    return files("consumer.service").joinpath(name).read_text(encoding="utf-8")
