"""What Redis says of versions and of the fleet, put together for people and for JSON."""

from collections.abc import Iterator
from typing import Any

from catalog_sync.ancestry import ancestors
from catalog_sync.layout import Ack, Manifest
from catalog_sync.publisher import FleetStatus


def overview(status: FleetStatus, now_ms: int) -> dict[str, Any]:
    """JSON values. A version's ``standing`` is ``current``, ``rollback`` (goes there), ``quarantined`` or empty."""
    return {
        "versions": [_version(manifest, status) for manifest in _sorted(status)],
        "pointers": {
            model: {"version": pointer.version, "generation": pointer.generation, "history": pointer.history}
            for model, pointer in status.pointers.items()
        },
        "instances": [_instance(ack, now_ms) for ack in status.acks],
        "pins": {
            group: {
                "serve": pin.serve.version if pin.serve else None,
                "keep": [each.version for each in pin.keep],
                "generation": pin.generation,
            }
            for group, pin in status.pins.items()
        },
        "quarantine": {
            version: {"reason": found.reason, "message": found.message, "by": found.by, "time_ms": found.time_ms}
            for version, found in status.quarantine.items()
        },
        "unreadable": list(status.unreadable),
    }


def _sorted(status: FleetStatus) -> Iterator[Manifest]:
    """By model; the current version first, then its history, then what never was current."""

    def place(manifest: Manifest) -> tuple[str, int, str]:
        pointer = status.pointers.get(manifest.model)
        order = (pointer.version, *pointer.history) if pointer else ()
        at = order.index(manifest.version) if manifest.version in order else len(order)
        return manifest.model, at, manifest.version

    yield from sorted(status.manifests, key=place)


def _version(manifest: Manifest, status: FleetStatus) -> dict[str, Any]:
    parents = {each.version: each.parent for each in status.manifests}
    return {
        "model": manifest.model,
        "version": manifest.version,
        "label": manifest.label,
        "items": manifest.items,
        "bytes": manifest.size,
        "standing": _standing(manifest, status),
        "chain": ancestors(manifest.version, parents),
        "canaries": len(manifest.canaries),
        "signed": manifest.signature is not None,
        "pinned_by": [group for group, pin in status.pins.items() if manifest.version in pin.versions],
        "active_on": sum(ack.version == manifest.version for ack in status.acks),
        "resident_on": sum(manifest.version in ack.resident for ack in status.acks),
        "condemned_by": [ack.instance for ack in status.acks if manifest.version in ack.condemned],
    }


def _standing(manifest: Manifest, status: FleetStatus) -> str:
    if manifest.version in status.quarantine:
        return "quarantined"
    pointer = status.pointers.get(manifest.model)
    if pointer is None:
        return ""
    if pointer.version == manifest.version:
        return "current"
    usable = [version for version in pointer.history if status.bad_part(version) is None]
    return "rollback" if usable[:1] == [manifest.version] else ""


def _instance(ack: Ack, now_ms: int) -> dict[str, Any]:
    return {
        "instance": ack.instance,
        "model": ack.model,
        "group": ack.group,
        "version": ack.version,
        "target": ack.target,
        "generation": ack.generation,
        "state": ack.state,
        "error": ack.error,
        "pinned": ack.pinned,
        "resident": ack.resident,
        "resident_bytes": ack.resident_bytes,
        "condemned": ack.condemned,
        "kept": ack.kept,
        "staleness_s": round(ack.staleness_s, 3),
        "age_s": max(0.0, (now_ms - ack.time_ms) / 1000),
    }
