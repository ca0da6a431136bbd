"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.git_tokens import api as git_tokens_api
from clusters.git_tokens import pages as git_tokens

PAGES: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/git-tokens", git_tokens.git_tokens, name="git_tokens"),
    path("appcodes/<slug:code>/git-tokens/remove", git_tokens.remove_git_token, name="remove_git_token"),
]

REST: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/git-tokens", git_tokens_api.AppcodeGitTokens.as_view()),
    path("appcodes/<slug:code>/git-tokens/<str:host>", git_tokens_api.OneGitToken.as_view()),
]
