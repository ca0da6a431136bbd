"""The page of an appcode's Git tokens: lists their servers, saves and removes tokens."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.frame.form import line
from clusters.frame.raw_text import Words
from clusters.git_tokens.actions import GitTokenSpec, remove_token, save_token, tokens_for
from portal.access import OPERATE, VIEW, appcode_for, may
from portal.errors import Invalid
from portal.manifests import parse
from portal.pages.appcodes import person
from portal.pages.forms import show_errors


class TokenForm(forms.Form):
    use_required_attribute = False

    host = line("Server", "As in the address of a repository, for example git.example.com")
    name = line("Name", "GitLab wants oauth2; GitHub and Gitea take any name with a token.", initial="git")
    token = Words(
        label="Token",
        help_text="One that may read repositories and nothing else. It is never shown again.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def git_tokens(request: HttpRequest, code: str) -> HttpResponse:
    user = person(request)
    appcode = appcode_for(user, code, OPERATE if request.method == "POST" else VIEW)
    form = TokenForm(
        request.POST if request.method == "POST" else None, initial={"host": request.GET.get("host", "")[:255]}
    )
    if request.method == "POST" and form.is_valid():
        said = form.cleaned_data
        try:
            spec = parse(GitTokenSpec, {key: said[key].strip() for key in ("name", "token")})
            made = save_token(appcode, said["host"].strip().lower(), spec, acting_user=user)
        except Invalid as error:
            show_errors(form, error, {each: each for each in ("host", "name", "token")})
        else:
            messages.success(request, f"Runs of {code} fetch code from {made.host} with this token from now on.")
            return redirect("git_tokens", code)
    context = {
        "appcode": appcode,
        "rows": tokens_for(user, code),
        "form": form,
        "may_operate": may(user, appcode, OPERATE),
    }
    return render(request, "clusters/git_tokens/git_tokens.html", context)


@require_POST
def remove_git_token(request: HttpRequest, code: str) -> HttpResponse:
    host = request.POST.get("host", "")
    remove_token(person(request), code, host)
    messages.success(request, f"The token for {host} is forgotten.")
    return redirect("git_tokens", code)
