// Java's HttpClient: a GET through the proxy of the system properties; prints status and body, or what went wrong.

import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Get {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newBuilder().proxy(ProxySelector.getDefault()).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(response.version() + " " + response.statusCode() + " " + response.body());
        System.exit(response.statusCode() == 200 ? 0 : 1);
    }
}
