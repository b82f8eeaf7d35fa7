"""What a descriptor may not say of its groups, beyond the schema."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from registry.problem import Problem
from registry.sections import Rule, Sections


def _members_of_groups(sections: Sections) -> Iterator[Problem]:
    for group in sections.groups:
        members = group.texts("members")
        for each in dict.fromkeys(members):
            if each not in sections.input_ids:
                yield Problem(group.at("members"), f'"{group.id}" member "{each}" does not exist')
            if members.count(each) > 1:
                yield Problem(group.at("members"), f'"{group.id}" member "{each}" appears twice')


def _groups_can_be_answered(sections: Sections) -> Iterator[Problem]:
    for group in sections.groups:
        found = [sections.find_input(each) for each in dict.fromkeys(group.texts("members"))]
        required = [each.id for each in found if each is not None and not each.is_true("optional")]
        for word, told in (
            ("mutually-exclusive", "is mutually-exclusive and cannot have required members, such as"),
            ("one-is-required", "is a one-is-required group and contains a required member,"),
            ("all-or-none", "is an all-or-none group and contains a required member,"),
        ):
            if group.is_true(word):
                for each in required:
                    instead = f'write "optional": true for {each}, or take it out of the group'
                    yield Problem(group.at("members"), f'"{group.id}" {told} "{each}"', instead)


def _groups_do_not_contradict(sections: Sections) -> Iterator[Problem]:
    for group in sections.groups:
        members = group.texts("members")
        exclusive, one = group.is_true("mutually-exclusive"), group.is_true("one-is-required")
        if group.is_true("all-or-none") and (exclusive or one):
            message = f'"{group.id}" is an all-or-none group and cannot be paired with one-is-required or mutually-exclusive groups'
            yield Problem(group.at("all-or-none"), message, "make two groups of it")
        for each in dict.fromkeys(members) if exclusive else ():
            part = sections.find_input(each)
            for other in part.texts("requires-inputs") if part is not None else ():
                if other in members:
                    message = f'"{group.id}" is mutually-exclusive and cannot have members require one another, such as "{each}" and "{other}"'
                    yield Problem(group.at("members"), message)
        for another in sections.groups:
            if another is group or not another.is_true("all-or-none"):
                continue
            both = [each for each in dict.fromkeys(members) if each in another.texts("members")]
            for left, right in permutations(both, 2) if exclusive else ():
                message = f'mutually-exclusive group "{group.id}" and all-or-none group "{another.id}" cannot both contain input pairs "{left}" and "{right}"'
                yield Problem(group.at("members"), message)
            if one and members and len(both) == len(set(members)):
                message = f'"{group.id}" is one-is-required and cannot be a subset of the all-or-none group "{another.id}"'
                yield Problem(group.at("members"), message)


GROUP_RULES: tuple[Rule, ...] = (
    _members_of_groups,
    _groups_can_be_answered,
    _groups_do_not_contradict,
)
