"""What people see: the only part of puffrun that draws. Everything goes to stderr."""

from puffrun.console.card.card import render_card, render_title
from puffrun.console.card.plan_facts import RunFacts, facts_from_json, facts_of
from puffrun.console.launch_lines import LaunchScreen
from puffrun.console.screen import PREFIX, Screen, make_screen

__all__ = [
    "PREFIX",
    "LaunchScreen",
    "RunFacts",
    "Screen",
    "facts_from_json",
    "facts_of",
    "make_screen",
    "render_card",
    "render_title",
]
