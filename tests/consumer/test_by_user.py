"""Which keys of a cache are a user's."""

from consumer.serving.by_user import KeysByUser


def test_a_users_keys_are_found_and_users_without_any_take_no_memory() -> None:
    keys: KeysByUser[int] = KeysByUser()
    for user, key in (("u", 1), ("u", 2), ("w", 3), (None, 4)):
        keys.add(user, key)
    assert (sorted(keys.of("u")), keys.of("w"), keys.of("x")) == ([1, 2], (3,), ())
    for user, key in (("u", 1), ("u", 2), ("w", 9), (None, 4), ("x", 1)):
        keys.discard(user, key)
    assert (keys.of("u"), keys.of("w"), len(keys)) == ((), (3,), 1)
