#!/bin/sh
# Generates missing secrets of compose.yaml; existing ones stay. Keep a copy: without portal-secret-key, encrypted values in the
# database (keys of datastores, kubeconfigs) are lost.
set -eu
cd "${0%/*}"
mkdir -p secrets
# The folder is private, and its files are readable, because containers run as other users.
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
# The gateway adds this secret to every request, so that the web server trusts it: one file for each of them.
random | new gateway-secret
printf 'http: {middlewares: {proof: {headers: {customRequestHeaders: {X-Portal-Gateway: "%s"}}}}}\n' "$(cat gateway-secret)" | new gateway-proof
