"""Tiny servers and clients that know nothing of proxies.

serve ADDRESS PORT    tells every caller over TCP which address it comes from
answer ADDRESS PORT   the same over UDP
call ADDRESS PORT     prints what a server over TCP says
ask ADDRESS PORT      prints what a server over UDP says
get ADDRESS PORT PATH prints what a web server answers
"""

import socket
import sys
import urllib.request

verb, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if verb == "get":
    with urllib.request.urlopen(f"http://{address}:{port}{sys.argv[4]}", timeout=10) as answer:
        print(answer.read().decode())
    sys.exit()
family = socket.AF_INET6 if ":" in address else socket.AF_INET
kind = socket.SOCK_STREAM if verb in ("serve", "call") else socket.SOCK_DGRAM
with socket.socket(family, kind) as peer:
    peer.settimeout(None if verb in ("serve", "answer") else 10)
    if verb == "serve":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        peer.bind((address, port))
        peer.listen()
        while True:
            caller, source = peer.accept()
            with caller:
                caller.sendall(f"{address} hears {source[0]}".encode())
    elif verb == "answer":
        peer.bind((address, port))
        while True:
            _, source = peer.recvfrom(100)
            peer.sendto(f"port {port} hears {source[0]}".encode(), source)
    elif verb == "call":
        peer.connect((address, port))
        print(peer.makefile().read())
    else:
        peer.connect((address, port))
        peer.send(b"?")
        print(peer.recv(100).decode())
