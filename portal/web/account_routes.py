"""The allauth URLs that exist here: sign-in, sign-out and passwords.

The others (e-mail addresses, connected accounts, codes) would let users change what an administrator or the identity
provider decides.
"""

from allauth.account import views
from allauth.socialaccount import views as provider_views
from allauth.socialaccount.providers.openid_connect import views as openid_views
from django.urls import URLPattern, URLResolver, path, re_path

from portal.pages import accounts

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", views.login, name="account_login"),
    path("logout/", views.logout, name="account_logout"),
    path("inactive/", views.account_inactive, name="account_inactive"),
    path("signup/", views.signup, name="account_signup"),
    path("password/change/", accounts.change_password, name="account_change_password"),
    path("password/reset/", accounts.ask_for_new_password, name="account_reset_password"),
    path("password/reset/done/", views.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        views.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path("password/reset/key/done/", views.password_reset_from_key_done, name="account_reset_password_from_key_done"),
    path("3rdparty/login/cancelled/", provider_views.login_cancelled, name="socialaccount_login_cancelled"),
    path("3rdparty/login/error/", provider_views.login_error, name="socialaccount_login_error"),
    path("3rdparty/signup/", accounts.provider_knows_too_little, name="socialaccount_signup"),
    path("oidc/<str:provider_id>/login/", accounts.go_to_provider, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", openid_views.callback, name="openid_connect_callback"),
]
