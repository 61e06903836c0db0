"""``catalog status``: versions, pointers, pins, quarantine, and what the instances say."""

from typing import Any

from pydantic import Field

from catalog_sync.settings import CatalogSettings
from consumer.cli.catalog.on_redis import OnRedis
from consumer.cli.catalog.shown import say, visible


class Status(OnRedis):
    """Show the versions in Redis, which one is current for each model, and what the instances say."""

    as_json: bool = Field(False, alias="json", description="all of it as one JSON object")

    def run(self, settings: CatalogSettings) -> None:
        import json
        import time

        from rich.console import Console

        from catalog_sync.overview import overview
        from consumer.cli.tables import print_table

        with self.publisher(settings) as publisher:
            shown = overview(publisher.status(), time.time_ns() // 1_000_000)
        if self.as_json:
            Console().print(json.dumps(shown), markup=False, highlight=False, soft_wrap=True)
            return
        if not shown["versions"]:
            say("there is no version in Redis")
        for title, rows in _tables(shown).items():
            if rows:
                plain = [{name: visible(cell) for name, cell in row.items()} for row in rows]
                print_table(title, plain)
        for key in shown["unreadable"]:
            say(f"unreadable: {key}")


def _tables(shown: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Rows by column name, by the table's title."""
    return {
        "versions": [_version(version, shown) for version in shown["versions"]],
        "instances": [_instance(instance) for instance in shown["instances"]],
        "pins": [
            {"group": group, "serves": pin["serve"] or "the pointer's", "keeps": ", ".join(pin["keep"])}
            for group, pin in shown["pins"].items()
        ],
        "quarantine": [
            {"version": version, "by": found["by"], "why": f"{found['reason']}: {found['message']}"}
            for version, found in shown["quarantine"].items()
        ],
    }


def _version(version: dict[str, Any], shown: dict[str, Any]) -> dict[str, str]:
    notes = [f"changes {version['chain'][0]}"] if version["chain"] else []
    notes += [f"pinned by {group}" for group in version["pinned_by"]]
    canaries = version["canaries"]
    notes += [f"{canaries} {'canary' if canaries == 1 else 'canaries'}"] if canaries else []
    notes += ["signed"] if version["signed"] else []
    standing = {
        "current": f"generation {shown['pointers'].get(version['model'], {}).get('generation')}",
        "rollback": "rollback goes here",
    }
    return {
        "version": version["version"],
        "model": version["model"],
        "label": version["label"] or "",
        "items": f"{version['items']:,}",
        "MiB": f"{version['bytes'] / 2**20:.1f}",
        "current": standing.get(version["standing"], version["standing"]),
        "active on": str(version["active_on"]),
        "notes": ", ".join(notes),
    }


def _instance(instance: dict[str, Any]) -> dict[str, str]:
    from consumer.service.catalog_page import troubles

    return {
        "instance": instance["instance"],
        "model": instance["model"],
        "group": instance["group"] or "",
        "version": (instance["version"] or "none") + (" (pinned)" if instance["pinned"] else ""),
        "generation": str(instance["generation"]),
        "state": instance["state"].replace("_", " "),
        "error": "; ".join(troubles(instance)),
        "stale": f"{instance['staleness_s']:.0f} s",
        "age": f"{instance['age_s']:.0f} s",
    }
