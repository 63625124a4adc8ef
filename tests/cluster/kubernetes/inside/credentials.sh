#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# credentials.sh DIR NODES: a CA, server certificates, tokens and kubeconfigs.
# People and parts prove who they are by tokens; servers by the CA's certificates.
set -euo pipefail
dir=$1 nodes=$2
cd "$dir"
umask 077

openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 30 -subj /CN=cluster-ca -out ca.crt
openssl genrsa -out sa.key 2048 2>/dev/null # signs the service accounts' tokens
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null

# certificate NAME SUBJECT [ALT_NAMES]
certificate() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    openssl req -new -key "$1.key" -subj "$2" | openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 \
        -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth${3:+
subjectAltName=$3}") -out "$1.crt" 2>/dev/null
}

# user NAME USER GROUPS: a token, and a kubeconfig that uses it
user() {
    local token
    token=$(openssl rand -hex 16)
    printf '%s,%s,%s,"%s"\n' "$token" "$2" "$1" "$3" >>tokens
    cat >"$1.conf" <<CONF
apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://10.99.0.1:6443", certificate-authority: "$PWD/ca.crt"}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: $1, context: {cluster: cluster, user: $1}}]
current-context: $1
CONF
}

certificate kube-apiserver /CN=kube-apiserver \
    IP:10.99.0.1,IP:10.96.0.1,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
certificate admin /O=system:masters/CN=admin # the API server's own, to the kubelets
user admin admin system:masters
user kube-controller-manager system:kube-controller-manager ""
user kube-scheduler system:kube-scheduler ""
user kube-proxy system:kube-proxy ""
for number in $(seq "$nodes"); do
    certificate "node$number" "/O=system:nodes/CN=system:node:node$number" "IP:10.99.0.$((10 + number)),DNS:node$number"
    user "node$number" "system:node:node$number" system:nodes
done
