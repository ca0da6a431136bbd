#!/bin/sh
# Makes the secrets of compose.yaml, once; those that are there stay. Keep a copy: without portal-secret-key, what the
# database holds encrypted (keys of datastores, kubeconfigs) is lost.
set -eu
cd "${0%/*}"
mkdir -p secrets
# The folder is closed to everybody else; the files in it must be readable for the users that containers run as.
chmod 700 secrets
cd secrets
umask 022

new() {
    [ -s "$1" ] || cat > "$1"
}
random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

random | new portal-secret-key
random | new postgres-password
printf 'postgresql://portal:%s@postgres:5432/portal' "$(cat postgres-password)" | new database-url
password=$(random)
[ -s redis-url ] || rm -f redis-conf
printf 'requirepass %s\n' "$password" | new redis-conf
printf 'redis://:%s@redis:6379/0' "$(sed 's/requirepass //' redis-conf)" | new redis-url
# What the gateway adds to every request, so that the web server knows that it comes from there: for the one, and for the other.
random | new gateway-secret
printf 'http: {middlewares: {proof: {headers: {customRequestHeaders: {X-Portal-Gateway: "%s"}}}}}\n' "$(cat gateway-secret)" | new gateway-proof
